// Reads a stream of subjects <stream>.a and <stream>.b through JetStream's API, as tests/clients/jetstream_reads.py says.
// ./reads URL STREAM [DOMAIN]. Build: go mod tidy && go build -o reads .
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"os"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/synadia-io/orbit.go/jetstreamext"
)

type found struct {
	Subject string `json:"subject"`
	Seq     uint64 `json:"seq"`
	Data    string `json:"data"`
	A       string `json:"a"`
}

func shown(message *jetstream.RawStreamMsg) found {
	return found{message.Subject, message.Sequence, string(message.Data), message.Header.Get("A")}
}

func show(name string, value any, err error) {
	var refused *jetstream.APIError
	if errors.As(err, &refused) {
		value = fmt.Sprintf("error %d/%d", refused.Code, refused.ErrorCode)
	} else if err != nil {
		value = "error " + err.Error()
	}
	line, _ := json.Marshal([]any{name, value})
	fmt.Println(string(line))
}

func all(messages iter.Seq2[*jetstream.RawStreamMsg, error], err error) ([]found, error) {
	list := []found{}
	if err != nil {
		return list, err
	}
	for message, err := range messages {
		if err != nil {
			return list, err
		}
		list = append(list, shown(message))
	}
	return list, nil
}

func one(message *jetstream.RawStreamMsg, err error) (any, error) {
	if err != nil {
		return nil, err
	}
	return shown(message), nil
}

func main() {
	connection, err := nats.Connect(os.Args[1])
	if err != nil {
		panic(err)
	}
	name := os.Args[2]
	js, err := jetstream.New(connection)
	if len(os.Args) > 3 {
		// by the prefix: jetstreamext makes a wrong subject of a domain
		js, err = jetstream.NewWithAPIPrefix(connection, "$JS."+os.Args[3]+".API")
	}
	if err != nil {
		panic(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
	defer cancel()
	names := []string{}
	for known := range js.StreamNames(ctx).Name() {
		if known == name {
			names = append(names, known)
		}
	}
	show("names", names, nil)
	_, err = js.Stream(ctx, "nobody")
	show("no stream", nil, err)
	by, err := js.StreamNameBySubject(ctx, name+".b")
	show("name by subject", by, err)
	stream, err := js.Stream(ctx, name)
	if err != nil {
		panic(err)
	}
	state := stream.CachedInfo().State
	show("info", []uint64{state.Msgs, state.FirstSeq, state.LastSeq}, nil)
	value, err := one(stream.GetMsg(ctx, 2))
	show("get", value, err)
	value, err = one(stream.GetMsg(ctx, 3, jetstream.WithGetMsgSubject(name+".b")))
	show("get next", value, err)
	value, err = one(stream.GetLastMsgForSubject(ctx, name+".a"))
	show("get last", value, err)
	value, err = one(stream.GetMsg(ctx, 99))
	show("get absent", value, err)
	list, err := all(jetstreamext.GetBatch(ctx, js, name, 3, jetstreamext.GetBatchSeq(2)))
	show("batch", list, err)
	list, err = all(jetstreamext.GetBatch(ctx, js, name, 10, jetstreamext.GetBatchSubject(name+".a")))
	show("batch by subject", list, err)
	list, err = all(jetstreamext.GetLastMsgsFor(ctx, js, name, []string{name + ".a", name + ".b"}))
	show("last of each", list, err)
	list, err = all(jetstreamext.GetLastMsgsFor(ctx, js, name, []string{name + ".>"}, jetstreamext.GetLastMsgsUpToSeq(4)))
	show("last of each, once", list, err)
}
