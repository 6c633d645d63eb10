// nats.go with its package jetstream, and orbit's batches, as tests/clients/protocol.py says. Build: go mod tidy && go build -o client .
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strconv"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/synadia-io/orbit.go/jetstreamext"
)

type command struct {
	Op             string            `json:"op"`
	Subject        string            `json:"subject"`
	Value          string            `json:"value"`
	Headers        map[string]string `json:"headers"`
	MsgID          *string           `json:"msg_id"`
	ExpectStream   *string           `json:"expect_stream"`
	ExpectLast     *uint64           `json:"expect_last"`
	ExpectOfSubj   *uint64           `json:"expect_last_of_subject"`
	ExpectLastID   *string           `json:"expect_last_msg_id"`
	Count          int               `json:"count"`
	RatePerSecond  int               `json:"rate"`
	WithMessageIDs bool              `json:"msg_ids"`
	How            string            `json:"how"`
}

type answer map[string]any

func main() {
	connection, err := nats.Connect(os.Args[1], nats.MaxReconnects(-1))
	if err != nil {
		panic(err)
	}
	js, err := jetstream.New(connection)
	if err != nil {
		panic(err)
	}
	input := bufio.NewScanner(os.Stdin)
	input.Buffer(nil, 1<<20)
	var stop chan struct{}
	var ended chan answer
	for input.Scan() {
		var asked command
		if err := json.Unmarshal(input.Bytes(), &asked); err != nil {
			panic(err)
		}
		var said answer
		switch asked.Op {
		case "publish":
			said = publish(js, asked)
		case "many":
			said = many(js, asked)
		case "atomic", "fast":
			said = batch(js, asked)
		case "steady":
			stop, ended = make(chan struct{}), make(chan answer, 1)
			go func() { ended <- steady(js, asked, stop) }()
			said = answer{}
		case "stop":
			close(stop)
			said = <-ended
		}
		line, _ := json.Marshal(said)
		fmt.Println(string(line))
	}
}

func read(ack *jetstream.PubAck, err error) answer {
	var refused *jetstream.APIError
	switch {
	case err == nil:
		return answer{"stream": ack.Stream, "seq": ack.Sequence, "duplicate": ack.Duplicate}
	case errors.As(err, &refused):
		return answer{"code": refused.Code, "err_code": refused.ErrorCode, "description": refused.Description}
	default:
		return answer{"failed": err.Error()}
	}
}

func message(asked command) (*nats.Msg, []jetstream.PublishOpt) {
	made := nats.NewMsg(asked.Subject)
	made.Data = []byte(asked.Value)
	for name, value := range asked.Headers {
		made.Header[name] = []string{value}
	}
	var options []jetstream.PublishOpt
	if asked.MsgID != nil {
		options = append(options, jetstream.WithMsgID(*asked.MsgID))
	}
	if asked.ExpectStream != nil {
		options = append(options, jetstream.WithExpectStream(*asked.ExpectStream))
	}
	if asked.ExpectLast != nil {
		options = append(options, jetstream.WithExpectLastSequence(*asked.ExpectLast))
	}
	if asked.ExpectOfSubj != nil {
		options = append(options, jetstream.WithExpectLastSequencePerSubject(*asked.ExpectOfSubj))
	}
	if asked.ExpectLastID != nil {
		options = append(options, jetstream.WithExpectLastMsgID(*asked.ExpectLastID))
	}
	return made, options
}

func publish(js jetstream.JetStream, asked command) answer {
	made, options := message(asked)
	return read(js.PublishMsg(context.Background(), made, options...))
}

func publishAsync(js jetstream.JetStream, asked command) answer {
	made, options := message(asked)
	future, err := js.PublishMsgAsync(made, options...)
	if err != nil {
		return read(nil, err)
	}
	select {
	case ack := <-future.Ok():
		return read(ack, nil)
	case err := <-future.Err():
		return read(nil, err)
	}
}

func many(js jetstream.JetStream, asked command) answer {
	futures := make([]jetstream.PubAckFuture, 0, asked.Count)
	sequences, failed := []uint64{}, []string{}
	for number := range asked.Count {
		future, err := js.PublishAsync(asked.Subject, []byte(strconv.Itoa(number)))
		if err != nil {
			failed = append(failed, err.Error())
			continue
		}
		futures = append(futures, future)
	}
	for _, future := range futures {
		select {
		case ack := <-future.Ok():
			sequences = append(sequences, ack.Sequence)
		case err := <-future.Err():
			failed = append(failed, err.Error())
		}
	}
	return answer{"seqs": sequences, "failed": failed}
}

// batch sends three messages with orbit: as an atomic batch, or as a fast one.
func batch(js jetstream.JetStream, asked command) answer {
	within, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	if asked.Op == "fast" {
		refused := make(chan error, 1) // that of the first message comes only here
		publisher, err := jetstreamext.NewFastPublisher(js, jetstreamext.WithFastPublisherErrorHandler(func(err error) {
			select {
			case refused <- err:
			default:
			}
		}))
		if err == nil {
			_, err = publisher.Add(asked.Subject, []byte("1"))
		}
		select {
		case err = <-refused:
		default:
		}
		if err == nil {
			_, err = publisher.Commit(within, asked.Subject, []byte("2"))
		}
		return read(&jetstream.PubAck{}, err)
	}
	publisher, err := jetstreamext.NewBatchPublisher(js)
	if err == nil {
		err = publisher.Add(asked.Subject, []byte("1"))
	}
	if err == nil {
		_, err = publisher.Commit(within, asked.Subject, []byte("2"))
	}
	return read(&jetstream.PubAck{}, err)
}

func steady(js jetstream.JetStream, asked command, stop chan struct{}) answer {
	var lock sync.Mutex
	var waiting sync.WaitGroup
	acked, failed := [][2]uint64{}, [][2]any{}
	tick := time.NewTicker(time.Second / time.Duration(asked.RatePerSecond))
	defer tick.Stop()
	sent := 0
	for running := true; running; {
		select {
		case <-stop:
			running = false
		case <-tick.C:
			number := sent
			sent++
			waiting.Add(1)
			publishOne := func() {
				defer waiting.Done()
				one := command{Subject: asked.Subject, Value: strconv.Itoa(number)}
				if asked.WithMessageIDs {
					id := asked.Value + one.Value
					one.MsgID = &id
				}
				send := publish
				if asked.How == "async" {
					send = publishAsync
				}
				said := send(js, one)
				lock.Lock()
				defer lock.Unlock()
				if seq, stored := said["seq"]; stored {
					acked = append(acked, [2]uint64{uint64(number), seq.(uint64)})
				} else {
					failed = append(failed, [2]any{number, fmt.Sprint(said)})
				}
			}
			if asked.How == "one by one" {
				publishOne()
			} else {
				go publishOne()
			}
		}
	}
	waiting.Wait()
	return answer{"sent": sent, "acked": acked, "failed": failed}
}
