// Transactional producers of Go clients for tests/support/clients/line_producer.py: `producers CLIENT BOOTSTRAP ID`.
package main

import (
	"bufio"
	"context"
	"fmt"
	"log"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/IBM/sarama"
	"github.com/twmb/franz-go/pkg/kgo"
)

type producer interface {
	begin() error
	send(topic string, partition int32, value string) error
	offsets(group, topic string, partition int32, offset int64) error
	end(commit bool) error
}

// sarama reports a failed end of a transaction, and leaves its repetition to the program.
const mostTries = 10

type saramaProducer struct{ sarama.SyncProducer }

func newSarama(bootstrap, id string) (producer, error) {
	config := sarama.NewConfig()
	config.Version = sarama.V2_8_0_0
	config.Producer.Idempotent = true
	config.Producer.RequiredAcks = sarama.WaitForAll
	config.Producer.Return.Successes = true
	config.Producer.Partitioner = sarama.NewManualPartitioner
	config.Producer.Transaction.ID = id
	config.Producer.Transaction.Retry.Backoff = 100 * time.Millisecond
	config.Producer.Retry.Max = mostTries // sarama's 3 tries in 0.3 s do not outlast a slow refresh of metadata
	config.Net.MaxOpenRequests = 1
	made, err := sarama.NewSyncProducer([]string{bootstrap}, config)
	return saramaProducer{made}, err
}

func (p saramaProducer) begin() error { return p.BeginTxn() }

func (p saramaProducer) send(topic string, partition int32, value string) error {
	_, _, err := p.SendMessage(&sarama.ProducerMessage{
		Topic: topic, Partition: partition, Value: sarama.StringEncoder(value)})
	return err
}

func (p saramaProducer) offsets(group, topic string, partition int32, offset int64) error {
	return p.AddOffsetsToTxn(map[string][]*sarama.PartitionOffsetMetadata{
		topic: {{Partition: partition, Offset: offset}}}, group)
}

func (p saramaProducer) end(commit bool) (err error) {
	for tries := 0; tries < mostTries; tries++ {
		if commit {
			err = p.CommitTxn()
		} else {
			err = p.AbortTxn()
		}
		if err == nil {
			return nil
		}
	}
	return err
}

type franzProducer struct{ *kgo.Client }

func newFranz(bootstrap, id string) (producer, error) {
	client, err := kgo.NewClient(kgo.SeedBrokers(bootstrap), kgo.TransactionalID(id),
		kgo.RecordPartitioner(kgo.ManualPartitioner()))
	return franzProducer{client}, err
}

func (p franzProducer) begin() error { return p.BeginTransaction() }

func (p franzProducer) send(topic string, partition int32, value string) error {
	return p.ProduceSync(context.Background(), &kgo.Record{
		Topic: topic, Partition: partition, Value: []byte(value)}).FirstErr()
}

func (p franzProducer) offsets(group, topic string, partition int32, offset int64) error {
	return fmt.Errorf("offsets belong to a group session of franz-go")
}

func (p franzProducer) end(commit bool) error {
	return p.EndTransaction(context.Background(), kgo.TransactionEndTry(commit))
}

func run(p producer, words []string) error {
	switch words[0] {
	case "begin":
		return p.begin()
	case "send":
		partition, err := strconv.ParseInt(words[2], 10, 32)
		if err != nil {
			return err
		}
		return p.send(words[1], int32(partition), words[3])
	case "flush": // send has waited for the acknowledgement
		return nil
	case "offsets":
		partition, err := strconv.ParseInt(words[3], 10, 32)
		if err != nil {
			return err
		}
		offset, err := strconv.ParseInt(words[4], 10, 64)
		if err != nil {
			return err
		}
		return p.offsets(words[1], words[2], int32(partition), offset)
	case "commit", "abort":
		return p.end(words[0] == "commit")
	}
	return fmt.Errorf("unknown command %q", words[0])
}

func main() {
	clients := map[string]func(string, string) (producer, error){"sarama": newSarama, "franz-go": newFranz}
	p, err := clients[os.Args[1]](os.Args[2], os.Args[3])
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("ok")
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		if err := run(p, strings.Fields(lines.Text())); err != nil {
			fmt.Println("failed", strings.ReplaceAll(err.Error(), "\n", " "))
		} else {
			fmt.Println("ok")
		}
	}
}
