module liftpy/reads

go 1.25

require (
	github.com/nats-io/nats.go v1.52.0
	github.com/synadia-io/orbit.go/jetstreamext v0.3.2
)
