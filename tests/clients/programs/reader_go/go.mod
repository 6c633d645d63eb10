module liftpy/reader

go 1.25

require (
	github.com/klauspost/compress v1.18.5
	github.com/nats-io/nats.go v1.52.0
	github.com/pierrec/lz4/v4 v4.1.22
)
