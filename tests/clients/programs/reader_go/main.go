// A reader of committed records, written from docs/read-protocol.md alone. Build: go mod tidy && go build -o reader .
// reader URL STREAM PARTITION UNTIL [SUBJECT...]: prints "offset TAB key TAB value" of each record, the oldest first; UNTIL: "end", what is committed
// when it begins, or how many records to print. SUBJECTs, with wildcards: only records of one of them.
package main

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/klauspost/compress/zstd"
	"github.com/nats-io/nats.go"
	"github.com/pierrec/lz4/v4"
)

const maxBytes, maxBatch, wait, patience = 1_040_384, 64 << 20, time.Second, 30 * time.Second

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// A protobuf message: fields that are written one after the other.
type fields []byte

func (f *fields) number(field int, value uint64) {
	*f = binary.AppendUvarint(binary.AppendUvarint(*f, uint64(field)<<3), value)
}

func (f *fields) text(field int, value []byte) {
	*f = append(binary.AppendUvarint(binary.AppendUvarint(*f, uint64(field)<<3|2), uint64(len(value))), value...)
}

// numbers and texts of a protobuf message, the last one of each field. Panics where it is none.
func parse(data []byte) (map[int]uint64, map[int]string) {
	numbers, texts := map[int]uint64{}, map[int]string{}
	for len(data) > 0 {
		tag, used := binary.Uvarint(data)
		value, more := binary.Uvarint(data[used:])
		if data = data[used+more:]; tag&7 == 2 {
			texts[int(tag>>3)], data = string(data[:value]), data[value:]
		} else {
			numbers[int(tag>>3)] = value
		}
	}
	return numbers, texts
}

type reader struct {
	connection                     *nats.Conn
	subject, stream, uid, node     string
	filter                         []string
	partition, epoch               uint64
	next, last, highWater, logFrom int64 // offsets; next: to ask for, last: that was looked at
	piece                          []byte
	pieceCrc                       uint32
}

type fatal struct{ error } // an error that asking again does not mend

// ask for what comes next, or with bounds 1 for what the partition holds: the numbers and the batches of the answer.
func (r *reader) ask(bounds uint64) (numbers map[int]uint64, body []byte, err error) {
	defer func() {
		if wrong := recover(); wrong != nil {
			err = fmt.Errorf("no answer to a read: %v", wrong)
		}
	}()
	id := rand.Uint64() >> 1
	var q fields
	for field, value := range map[int]uint64{1: uint64(r.next), 2: maxBytes, 4: uint64(wait.Milliseconds()), 8: uint64(r.highWater), 9: bounds,
		10: uint64(r.last), 11: r.epoch, 13: uint64(len(r.piece)), 14: uint64(r.pieceCrc), 16: r.partition, 17: id} {
		q.number(field, value)
	}
	for place, text := range append([]string{r.uid, r.stream}, r.filter...) {
		q.text([]int{5, 15, 18}[min(place, 2)], []byte(text))
	}
	to := strings.TrimSuffix(r.subject+"."+r.node, ".")
	r.node = "" // whoever does not answer well is not asked again at once
	message, err := r.connection.Request(to, append([]byte("\xb9\x0e\x43\xb4\x00\x08\x00\x11"), q...), wait+2*time.Second)
	data := message.Data // panics where there is none
	body = data[data[5]:]
	whole := data[5] == 8 || crc32.Checksum(body, castagnoli) == binary.BigEndian.Uint32(data[8:])
	size := uint64(binary.BigEndian.Uint32(body))
	numbers, texts := parse(body[4 : 4+size])
	if string(data[:4]) != "\xb9\x0e\x43\xb4" || data[7] != 0x12 || !whole || texts[16] != r.stream || numbers[17] != r.partition || numbers[18] != id {
		return nil, nil, errors.New("an answer to something else, or changed on its way")
	}
	switch numbers[1] {
	case 0:
	case 3, 4, 6, 8:
		return nil, nil, fatal{fmt.Errorf("error %d: %s", numbers[1], texts[2])}
	default:
		return nil, nil, fmt.Errorf("error %d: %s", numbers[1], texts[2])
	}
	if len(r.filter) > 0 && bounds == 0 && numbers[19] == 0 {
		return nil, nil, errors.New("an older node, which knows no filters")
	}
	if bounds == 1 && texts[4] != texts[11] {
		r.node = texts[11]
		return nil, nil, errors.New("only the leader knows the end")
	}
	r.uid, r.node = texts[3], texts[4]
	r.highWater, r.logFrom = max(r.highWater, int64(numbers[6])), int64(numbers[7])
	return numbers, body[4+size:], nil
}

// again asks until there is an answer, an error that is final, or nobody has answered for too long.
func (r *reader) again(bounds uint64) (map[int]uint64, []byte, error) {
	var final fatal
	numbers, body, err := r.ask(bounds)
	for end := time.Now().Add(patience); err != nil && !errors.As(err, &final) && time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		numbers, body, err = r.ask(bounds)
	}
	return numbers, body, err
}

// whole is the batches of an answer; nothing while the pieces of a large one are coming.
func (r *reader) whole(numbers map[int]uint64, body []byte) []byte {
	total, at, crc := numbers[13], numbers[14], uint32(numbers[15])
	if total == 0 {
		r.piece = nil
		return body
	}
	if at == 0 || crc != r.pieceCrc {
		r.piece, r.pieceCrc = nil, crc
	}
	if at != uint64(len(r.piece)) || total > maxBatch {
		r.piece = nil
		return nil
	}
	r.piece = append(r.piece, body...)
	if uint64(len(r.piece)) < total {
		return nil
	}
	body, r.piece = r.piece, nil
	return body
}

type record struct {
	offset     int64
	key, value []byte
}

type columns struct { // of a batch's body; what lies outside of it panics, and is an error above
	body []byte
	at   int
}

func (c *columns) take(size int) []byte {
	found := c.body[c.at : c.at+size]
	c.at += (size + 7) / 8 * 8
	return found
}

func (c *columns) numbers(count int) []int {
	found, data := make([]int, count), c.take(4*count)
	for i := range found {
		found[i] = int(binary.LittleEndian.Uint32(data[4*i:]))
	}
	return found
}

func (c *columns) variable(count int, nulls int) [][]byte {
	valid := c.take((count + 7) / 8 * nulls)
	ends, from, found := append(c.numbers(count), 0), 0, make([][]byte, count)
	data := c.take(ends[max(count-1, 0)])
	for i, end := range ends[:count] {
		if len(valid) == 0 || valid[i/8]>>(i%8)&1 == 1 {
			found[i] = data[from:end]
		}
		from = end
	}
	return found
}

func decompressed(codec byte, body []byte, size uint32) (out []byte, err error) {
	switch out = make([]byte, min(size, maxBatch)); codec {
	case 0:
		return body, nil
	case 1:
		_, err = lz4.UncompressBlock(body, out)
	case 2:
		decoder, _ := zstd.NewReader(nil, zstd.WithDecoderMaxMemory(maxBatch))
		defer decoder.Close()
		out, err = decoder.DecodeAll(body, out[:0])
	default:
		err = errors.New("a codec that this reader does not know")
	}
	return out, err
}

// batch takes the first one of data: its records, its LeaderEpoch, the offset behind it, and what follows it.
func batch(data []byte) (records []record, epoch uint64, next int64, rest []byte, err error) {
	defer func() {
		if recover() != nil {
			err = errors.New("a batch whose columns do not fit it")
		}
	}()
	size := binary.LittleEndian.Uint32(data[8:])
	if crc32.Checksum(data[4:size], castagnoli) != binary.LittleEndian.Uint32(data) || data[6] != 1 {
		return nil, 0, 0, nil, errors.New("a damaged batch, or one of another version")
	}
	base, count := int64(binary.LittleEndian.Uint64(data[16:])), int(binary.LittleEndian.Uint32(data[12:]))
	epoch, next = binary.LittleEndian.Uint64(data[24:]), base+int64(binary.LittleEndian.Uint32(data[60:]))+1
	if count == 0 || data[7]&8 != 0 {
		return nil, epoch, next, data[size:], nil
	}
	body, err := decompressed(data[7]&7, data[64:size], binary.LittleEndian.Uint32(data[56:]))
	if err != nil {
		return nil, 0, 0, nil, err
	}
	present := binary.LittleEndian.Uint16(data[54:])
	there := func(bit uint16) int { return min(int(present&bit), 1) }
	c := &columns{body: body}
	values := c.variable(count, there(256))
	keys := append(c.variable(count*there(1), there(512)), make([][]byte, count)...)
	pairs := append(c.numbers(count*there(2)), 0)[max(count*there(2)-1, 0)]
	c.variable(pairs, 0)
	c.variable(pairs, 0)
	if there(4) == 1 && len(c.variable(c.numbers(2)[0], 0)) > 1 {
		c.numbers(count)
	}
	c.variable(count*there(8), there(1024))
	c.take(8 * count * there(16))
	deltas := c.numbers(count * there(32))
	for i := range values {
		offset := base + int64(i)
		if len(deltas) > 0 {
			offset = base + int64(deltas[i])
		}
		records = append(records, record{offset, keys[i], values[i]})
	}
	return records, epoch, next, data[size:], nil
}

// read hands on what lies between the position and the next answer.
func (r *reader) read(hand func(record)) error {
	numbers, body, err := r.again(0)
	if err != nil {
		return err
	}
	whole := r.piece == nil && numbers[13] == 0
	for body = r.whole(numbers, body); len(body) > 0; {
		records, epoch, next, rest, err := batch(body)
		if err != nil {
			return err
		}
		if next > r.next {
			for _, found := range records {
				if found.offset >= r.next {
					hand(found)
				}
			}
			r.next, r.last, r.epoch = next, next-1, epoch
		}
		body = rest
	}
	if looked := int64(numbers[8]); whole && looked > r.next && numbers[20] > 0 { // a filter has left the rest out
		r.next, r.last, r.epoch = looked, looked-1, numbers[20]
	}
	return nil
}

func must(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func main() {
	connection, err := nats.Connect(os.Args[1], nats.MaxReconnects(-1), nats.ReconnectWait(100*time.Millisecond))
	must(err)
	partition, err := strconv.ParseUint(os.Args[3], 10, 31)
	must(err)
	r := &reader{connection: connection, stream: os.Args[2], partition: partition, filter: os.Args[5:], highWater: -1}
	r.subject = fmt.Sprintf("liftpy.%s.%d.read", r.stream, r.partition)
	_, _, err = r.again(1)
	must(err)
	r.next = r.logFrom
	end := int64(1) << 62
	left, err := strconv.ParseInt(os.Args[4], 10, 64)
	if err != nil { // "end"
		end, left = r.highWater+1, end
	}
	out := bufio.NewWriter(os.Stdout)
	for r.next < end && left > 0 {
		must(r.read(func(found record) {
			if left--; found.offset < end && left >= 0 {
				fmt.Fprintf(out, "%d\t%s\t%s\n", found.offset, found.key, found.value)
			}
		}))
		must(out.Flush())
	}
}
