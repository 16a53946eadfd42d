package kbroker

import (
	"testing"

	"github.com/twmb/franz-go/pkg/kgo"
)

func TestTransaction(t *testing.T) {
	ctx := t.Context()
	address := startKbroker(ctx, t)
	writer, err := kgo.NewClient(kgo.SeedBrokers(address), kgo.TransactionalID("writer"),
		kgo.DefaultProduceTopic("orders"), kgo.AllowAutoTopicCreation())
	if err != nil {
		t.Fatal(err)
	}
	defer writer.Close()
	if err := writer.BeginTransaction(); err != nil {
		t.Fatal(err)
	}
	if err := writer.ProduceSync(ctx, kgo.StringRecord("kept")).FirstErr(); err != nil {
		t.Fatal(err)
	}
	if err := writer.EndTransaction(ctx, kgo.TryCommit); err != nil {
		t.Fatal(err)
	}
	reader, err := kgo.NewClient(kgo.SeedBrokers(address), kgo.ConsumeTopics("orders"),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	if err != nil {
		t.Fatal(err)
	}
	defer reader.Close()
	t.Log("read", string(reader.PollFetches(ctx).Records()[0].Value))
}
