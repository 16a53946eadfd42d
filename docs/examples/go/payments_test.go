package payments

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
)

var ctx = context.Background()

func TestAPaymentSurvivesACrashBetweenTheDecisionToCommitAndItsMarkers(t *testing.T) {
	broker := startKbroker(t)
	createTopic(t, broker)
	held := broker.rule("transaction.prepared", "hold", nil)
	paid := make(chan error)
	go func() { paid <- pay(broker) }()
	broker.awaitMatch(held)
	broker.kill()
	broker.start()
	<-paid // an error, if the client asked before the new process was ready: it cannot know what was decided
	expect(t, broker, "10")
}

func TestATransactionWithoutAnEndIsAbortedAfterItsTimeout(t *testing.T) {
	broker := startKbroker(t)
	createTopic(t, broker)
	open := connect(t, broker, kgo.TransactionalID("shop"), kgo.TransactionTimeout(15*time.Minute))
	check(t, open.BeginTransaction())
	check(t, open.ProduceSync(ctx, kgo.StringRecord("never committed")).FirstErr())
	broker.advance(16 * time.Minute)
	expect(t, broker) // without the clock, the reader would wait for 16 minutes
}

func TestAPaymentWhoseAcknowledgementIsLostIsWrittenOnce(t *testing.T) {
	broker := startKbroker(t)
	createTopic(t, broker)
	lost := broker.rule("reply", "drop", object{"api": "Produce", "occurrence": 1})
	check(t, pay(broker))
	expect(t, broker, "10")
	broker.awaitMatch(lost)
}

func TestAPaymentIsWrittenOnceOrReportedWhateverTheBrokerDoesWhenItDies(t *testing.T) {
	explore(t, isChosen, func(t *testing.T, broker *kbroker) {
		createTopic(t, broker)
		err := pay(broker)
		if found := values(t, broker); len(found) > 1 || (err == nil && len(found) != 1) {
			t.Errorf("found %q after %v", found, err)
		}
	})
}

// isChosen chooses the steps of a commit, and the replies before them.
func isChosen(step object) bool {
	return step["transactional_id"] == "shop" && (step["api"] == nil ||
		step["point"] == "reply" && (step["api"] == "Produce" || step["api"] == "EndTxn"))
}

// pay is the application.
func pay(broker *kbroker) error {
	client, err := kgo.NewClient(options(broker, kgo.TransactionalID("shop"))...)
	if err != nil {
		return err
	}
	defer client.Close()
	if err := client.BeginTransaction(); err != nil {
		return err
	}
	if err := client.ProduceSync(ctx, kgo.StringRecord("10")).FirstErr(); err != nil {
		return err
	}
	return client.EndTransaction(ctx, kgo.TryCommit)
}

func options(broker *kbroker, more ...kgo.Opt) []kgo.Opt {
	return append(more, kgo.SeedBrokers(broker.address), kgo.DefaultProduceTopic("payments"), kgo.AlwaysRetryEOF(),
		kgo.MetadataMinAge(100*time.Millisecond))
}

func connect(t *testing.T, broker *kbroker, more ...kgo.Opt) *kgo.Client {
	client, err := kgo.NewClient(options(broker, more...)...)
	check(t, err)
	t.Cleanup(client.Close)
	return client
}

func createTopic(t *testing.T, broker *kbroker) {
	_, err := kadm.NewClient(connect(t, broker)).CreateTopic(ctx, 1, 1, nil, "payments")
	check(t, err)
}

func expect(t *testing.T, broker *kbroker, expected ...string) {
	t.Helper()
	if found := values(t, broker); !slices.Equal(found, expected) {
		t.Errorf("found %q, expected %q", found, expected)
	}
}

// values returns those that a reader with read_committed gets. A last record ends the reading.
func values(t *testing.T, broker *kbroker) (found []string) {
	check(t, connect(t, broker).ProduceSync(ctx, kgo.StringRecord("end")).FirstErr())
	start := map[string]map[int32]kgo.Offset{"payments": {0: kgo.NewOffset().AtStart()}}
	reader := connect(t, broker, kgo.ConsumePartitions(start), kgo.FetchIsolationLevel(kgo.ReadCommitted()))
	for !slices.Contains(found, "end") {
		reader.PollFetches(ctx).EachRecord(func(record *kgo.Record) { found = append(found, string(record.Value)) })
	}
	return found[:len(found)-1]
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
