// A member of a share group with franz-go; run as
//
//	go run . BOOTSTRAP TOPIC SCENARIO
//
// where the group has the name of the topic. It prints what it got, sorted, so that it says the same on every broker.
package main

import (
	"context"
	"fmt"
	"os"
	"sort"
	"strconv"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

const (
	records  = 30
	patience = 60 * time.Second
	quiet    = 3 * time.Second
)

func main() {
	bootstrap, topic, scenario := os.Args[1], os.Args[2], os.Args[3]
	switch scenario {
	case "acknowledge":
		produce(bootstrap, topic)
		acknowledge(bootstrap, topic)
	case "exact":
		produce(bootstrap, topic)
		exact(bootstrap, topic)
	case "renew":
		produce(bootstrap, topic)
		renew(bootstrap, topic)
	default:
		fail(fmt.Errorf("no scenario %s", scenario))
	}
}

// acknowledge accepts, releases once or rejects each record by its number; then nothing is left.
func acknowledge(bootstrap, topic string) {
	counts := map[int][]int32{}
	client := member(bootstrap, topic)
	for done, until := 0, time.Now().Add(patience); done < records && time.Now().Before(until); {
		for _, record := range poll(client) {
			number := numberOf(record)
			counts[number] = append(counts[number], record.DeliveryCount())
			switch {
			case number%5 == 0 && record.DeliveryCount() == 1:
				record.Ack(kgo.AckRelease)
			case number%7 == 3:
				record.Ack(kgo.AckReject)
				done++
			default:
				record.Ack(kgo.AckAccept)
				done++
			}
		}
		flush(client)
	}
	client.Close()
	for _, number := range sorted(counts) {
		fmt.Println(number, counts[number])
	}
	left(bootstrap, topic)
}

// exact gets no more records in one poll than asked for, though all are in one batch (KIP-1206).
func exact(bootstrap, topic string) {
	client := member(bootstrap, topic, kgo.ShareMaxRecords(7), kgo.ShareMaxRecordsStrict())
	sizes := []int{}
	for seen, until := 0, time.Now().Add(patience); seen < records && time.Now().Before(until); {
		got := poll(client)
		if len(got) > 0 {
			sizes = append(sizes, len(got))
			seen += len(got)
		}
		client.MarkAcks(kgo.AckAccept)
		flush(client)
	}
	client.Close()
	fmt.Println("sizes", sizes)
}

// renew keeps all records for longer than a lock lasts; another member gets none of them (KIP-1222).
func renew(bootstrap, topic string) {
	holder := member(bootstrap, topic)
	held := []*kgo.Record{}
	for until := time.Now().Add(patience); len(held) < records && time.Now().Before(until); {
		held = append(held, poll(holder)...)
	}
	other := member(bootstrap, topic)
	others := 0
	for round := 0; round < 5; round++ {
		for _, record := range held {
			record.Ack(kgo.AckRenew)
		}
		flush(holder)
		for until := time.Now().Add(time.Second); time.Now().Before(until); {
			others += len(poll(other))
		}
	}
	for _, record := range held {
		record.Ack(kgo.AckAccept)
	}
	flush(holder)
	holder.Close()
	other.Close()
	fmt.Println("held", len(held), "others", others)
	left(bootstrap, topic)
}

// left tells how many records a new member still gets.
func left(bootstrap, topic string) {
	client := member(bootstrap, topic)
	count := 0
	for until := time.Now().Add(quiet); time.Now().Before(until); {
		count += len(poll(client))
	}
	client.Close()
	fmt.Println("left", count)
}

func member(bootstrap, topic string, more ...kgo.Opt) *kgo.Client {
	options := []kgo.Opt{kgo.SeedBrokers(bootstrap), kgo.ShareGroup(topic), kgo.ConsumeTopics(topic)}
	client, fault := kgo.NewClient(append(options, more...)...)
	fail(fault)
	return client
}

func poll(client *kgo.Client) []*kgo.Record {
	ctx, cancel := context.WithTimeout(context.Background(), 300*time.Millisecond)
	defer cancel()
	return client.PollFetches(ctx).Records()
}

func flush(client *kgo.Client) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	fail(client.FlushAcks(ctx))
}

// produce sends all records in one batch.
func produce(bootstrap, topic string) {
	client, fault := kgo.NewClient(kgo.SeedBrokers(bootstrap), kgo.ProducerLinger(time.Second))
	fail(fault)
	defer client.Close()
	all := []*kgo.Record{}
	for number := 0; number < records; number++ {
		all = append(all, &kgo.Record{Topic: topic, Value: []byte(strconv.Itoa(number))})
	}
	fail(client.ProduceSync(context.Background(), all...).FirstErr())
}

func numberOf(record *kgo.Record) int {
	number, fault := strconv.Atoi(string(record.Value))
	fail(fault)
	return number
}

func sorted(counts map[int][]int32) []int {
	numbers := []int{}
	for number := range counts {
		numbers = append(numbers, number)
	}
	sort.Ints(numbers)
	return numbers
}

func fail(fault error) {
	if fault != nil {
		fmt.Fprintln(os.Stderr, fault)
		os.Exit(1)
	}
}
