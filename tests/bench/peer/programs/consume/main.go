// What nats.go reads fastest of a stream: a pull consumer without acks, many at a time or message by message, and an ordered consumer.
// Build: go mod tidy && go build -o consume .
// consume URL STREAM SECONDS fetch|pull|ordered prints one line of JSON: acked (messages read), took_s, cpu_s of this process, rounds
// through the stream: who comes to the end begins anew.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strconv"
	"syscall"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

const together = 5000 // messages asked for at once

func must(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func cpu() float64 {
	var used syscall.Rusage
	must(syscall.Getrusage(syscall.RUSAGE_SELF, &used))
	seconds := func(t syscall.Timeval) float64 { return float64(t.Sec) + float64(t.Usec)/1e6 }
	return seconds(used.Utime) + seconds(used.Stime)
}

// notYet says whether a consumer that was just made has no leader yet: ask again.
func notYet(err error, since time.Time) bool {
	if !errors.Is(err, nats.ErrNoResponders) || time.Since(since) > 10*time.Second {
		return false
	}
	time.Sleep(20 * time.Millisecond)
	return true
}

func fetched(consumer jetstream.Consumer, stored uint64, end time.Time) (count uint64) {
	began := time.Now()
	for count < stored && time.Now().Before(end) {
		batch, err := consumer.Fetch(int(min(together, stored-count)), jetstream.FetchMaxWait(10*time.Second))
		must(err)
		before := count
		for message := range batch.Messages() {
			if len(message.Data()) > 0 {
				count++
			}
		}
		if notYet(batch.Error(), began) {
			continue
		}
		must(batch.Error())
		if count == before {
			must(fmt.Errorf("nothing came"))
		}
	}
	return count
}

func pulled(consumer jetstream.Consumer, stored uint64, end time.Time) (count uint64) {
	began := time.Now()
	messages, err := consumer.Messages(jetstream.PullMaxMessages(together))
	must(err)
	for count < stored && (count%1000 != 0 || time.Now().Before(end)) {
		message, err := messages.Next()
		if notYet(err, began) {
			continue
		}
		must(err)
		if len(message.Data()) > 0 {
			count++
		}
	}
	messages.Stop()
	return count
}

func main() {
	connection, err := nats.Connect(os.Args[1])
	must(err)
	js, err := jetstream.New(connection)
	must(err)
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	stream, err := js.Stream(ctx, os.Args[2])
	must(err)
	info, err := stream.Info(ctx)
	must(err)
	seconds, err := strconv.ParseFloat(os.Args[3], 64)
	must(err)
	how, before, began := os.Args[4], cpu(), time.Now()
	end := began.Add(time.Duration(seconds * float64(time.Second)))
	var count, rounds uint64
	for time.Now().Before(end) {
		var consumer jetstream.Consumer
		if how == "ordered" {
			consumer, err = stream.OrderedConsumer(ctx, jetstream.OrderedConsumerConfig{})
		} else {
			consumer, err = stream.CreateConsumer(ctx, jetstream.ConsumerConfig{AckPolicy: jetstream.AckNonePolicy})
		}
		must(err)
		if how == "fetch" {
			count += fetched(consumer, info.State.Msgs, end)
		} else {
			count += pulled(consumer, info.State.Msgs, end)
		}
		rounds++
	}
	took, used := time.Since(began).Seconds(), cpu()-before
	line, _ := json.Marshal(map[string]any{"acked": count, "took_s": took, "cpu_s": used, "rounds": rounds})
	fmt.Println(string(line))
}
