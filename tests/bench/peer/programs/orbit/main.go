// What nats.go publishes fastest to a stream: its asynchronous publishes, and orbit's fast-ingest and atomic batches.
// Build: go mod tidy && go build -o peer .
// peer URL SUBJECT SECONDS SIZE async|fast|atomic prints one line of JSON: acked, took_s, cpu_s of this process.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/synadia-io/orbit.go/jetstreamext"
)

const (
	atomicMessages = 1000 // the server's limit
	atomicAtOnce   = 2
	fastFlow       = 1000 // an ack for so many messages
	fastAcks       = 8    // and so many acks outstanding
	asyncPending   = 4000 // messages that are not acknowledged
)

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

func fast(js jetstream.JetStream, subject string, value []byte, end time.Time) uint64 {
	failed := make(chan error, 1)
	options := jetstreamext.FastPublishFlowControl{Flow: fastFlow, MaxOutstandingAcks: fastAcks, AckTimeout: 30 * time.Second}
	publisher, err := jetstreamext.NewFastPublisher(js, options, jetstreamext.WithFastPublisherErrorHandler(func(err error) {
		select {
		case failed <- err:
		default:
		}
	}))
	must(err)
	var sent uint64
	for time.Now().Before(end) {
		for range 500 {
			_, err := publisher.Add(subject, value)
			must(err)
		}
		sent += 500
	}
	within, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	ack, err := publisher.Commit(within, subject, value)
	must(err)
	select {
	case err := <-failed:
		must(err)
	default:
	}
	if uint64(ack.BatchSize) != sent+1 {
		must(fmt.Errorf("%d of %d are stored", ack.BatchSize, sent+1))
	}
	return sent + 1
}

func atomic(js jetstream.JetStream, subject string, value []byte, end time.Time) uint64 {
	var sent uint64
	for time.Now().Before(end) {
		publisher, err := jetstreamext.NewBatchPublisher(js, jetstreamext.BatchFlowControl{})
		must(err)
		for range atomicMessages - 1 {
			must(publisher.Add(subject, value))
		}
		within, cancel := context.WithTimeout(context.Background(), time.Minute)
		_, err = publisher.Commit(within, subject, value)
		cancel()
		must(err)
		sent += atomicMessages
	}
	return sent
}

func async(js jetstream.JetStream, subject string, value []byte, end time.Time) uint64 {
	var sent uint64
	futures := make([]jetstream.PubAckFuture, 0, 1<<20)
	for time.Now().Before(end) {
		for range 500 {
			future, err := js.PublishAsync(subject, value, jetstream.WithStallWait(time.Minute))
			must(err)
			futures = append(futures, future)
		}
		sent += 500
	}
	select {
	case <-js.PublishAsyncComplete():
	case <-time.After(time.Minute):
		must(fmt.Errorf("no acks for a minute"))
	}
	for _, future := range futures {
		select {
		case <-future.Ok():
		case err := <-future.Err():
			must(err)
		}
	}
	return sent
}

func main() {
	connection, err := nats.Connect(os.Args[1])
	must(err)
	js, err := jetstream.New(connection, jetstream.WithPublishAsyncMaxPending(asyncPending))
	must(err)
	seconds, err := strconv.ParseFloat(os.Args[3], 64)
	must(err)
	size, err := strconv.Atoi(os.Args[4])
	must(err)
	value := make([]byte, size)
	for place := range value {
		value[place] = 'x'
	}
	run, atOnce := fast, 1
	switch os.Args[5] {
	case "atomic":
		run, atOnce = atomic, atomicAtOnce
	case "async":
		run = async
	}
	before, began := cpu(), time.Now()
	end := began.Add(time.Duration(seconds * float64(time.Second)))
	counts := make([]uint64, atOnce)
	var waiting sync.WaitGroup
	for place := range counts {
		waiting.Add(1)
		go func() {
			defer waiting.Done()
			counts[place] = run(js, os.Args[2], value, end)
		}()
	}
	waiting.Wait()
	took, used := time.Since(began).Seconds(), cpu()-before
	var acked uint64
	for _, count := range counts {
		acked += count
	}
	line, _ := json.Marshal(map[string]any{"acked": acked, "took_s": took, "cpu_s": used})
	fmt.Println(string(line))
}
