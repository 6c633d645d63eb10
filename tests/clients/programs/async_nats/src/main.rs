//! async-nats, as tests/clients/protocol.py says. Build: cargo build --release
use std::sync::Arc;
use std::time::Duration;

use async_nats::jetstream::context::PublishError;
use async_nats::jetstream::message::PublishMessage;
use async_nats::jetstream::publish::PublishAck;
use async_nats::jetstream::{self, Context};
use async_nats::HeaderMap;
use serde_json::{json, Value};
use std::error::Error;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::sync::{Mutex, Notify};
use tokio::task::JoinSet;

/// Of the publishes that wait for an ack: async-nats itself waits beyond 5000.
const MOST_AT_ONCE: usize = 4000;

fn read(result: Result<PublishAck, PublishError>) -> Value {
    match result {
        Ok(ack) => json!({"stream": ack.stream, "seq": ack.sequence, "duplicate": ack.duplicate}),
        Err(error) => match error.source().and_then(|source| source.downcast_ref::<jetstream::Error>()) {
            Some(said) => {
                let text = said.to_string();  // "description (code 400, error code 10071)"
                let description = text.rsplit_once(" (code").map_or(text.as_str(), |(before, _)| before);
                json!({"code": said.code(), "err_code": said.error_code().0, "description": description})
            }
            None => json!({"failed": format!("{error:?}")}),
        },
    }
}

fn message(asked: &Value) -> PublishMessage {
    let mut made = PublishMessage::build().payload(asked["value"].as_str().unwrap_or("").to_string().into());
    if let Some(given) = asked["headers"].as_object() {
        let mut headers = HeaderMap::new();
        for (name, value) in given {
            headers.insert(name.as_str(), value.as_str().unwrap_or(""));
        }
        made = made.headers(headers);
    }
    if let Some(id) = asked["msg_id"].as_str() {
        made = made.message_id(id);
    }
    if let Some(stream) = asked["expect_stream"].as_str() {
        made = made.expected_stream(stream);
    }
    if let Some(last) = asked["expect_last"].as_u64() {
        made = made.expected_last_sequence(last);
    }
    if let Some(last) = asked["expect_last_of_subject"].as_u64() {
        made = made.expected_last_subject_sequence(last);
    }
    if let Some(id) = asked["expect_last_msg_id"].as_str() {
        made = made.expected_last_message_id(id);
    }
    made
}

async fn publish(js: &Context, asked: &Value) -> Value {
    let subject = asked["subject"].as_str().unwrap().to_string();
    match js.send_publish(subject, message(asked)).await {
        Ok(coming) => read(coming.await),
        Err(error) => read(Err(error)),
    }
}

async fn many(js: &Context, asked: &Value) -> Value {
    let (mut seqs, mut failed) = (Vec::new(), Vec::new());
    let count = asked["count"].as_u64().unwrap();
    for start in (0..count).step_by(MOST_AT_ONCE) {
        let mut coming = Vec::new();
        for number in start..count.min(start + MOST_AT_ONCE as u64) {
            let subject = asked["subject"].as_str().unwrap().to_string();
            match js.publish(subject, number.to_string().into()).await {
                Ok(one) => coming.push(one),
                Err(error) => failed.push(error.to_string()),
            }
        }
        for one in coming {
            match one.await {
                Ok(ack) => seqs.push(ack.sequence),
                Err(error) => failed.push(error.to_string()),
            }
        }
    }
    json!({"seqs": seqs, "failed": failed})
}

async fn steady(js: Context, asked: Value, stop: Arc<Notify>) -> Value {
    let found = Arc::new(Mutex::new((Vec::new(), Vec::new())));
    let (mut sending, mut sent) = (JoinSet::new(), 0u64);
    let mut tick = tokio::time::interval(Duration::from_micros(1_000_000 / asked["rate"].as_u64().unwrap()));
    loop {
        tokio::select! {
            _ = stop.notified() => break,
            _ = tick.tick() => {}
        }
        if asked["how"].as_str() == Some("one by one") {
            while sending.join_next().await.is_some() {}
        }
        let (js, found, number) = (js.clone(), found.clone(), sent);
        let mut one = json!({"subject": asked["subject"], "value": number.to_string()});
        if asked["msg_ids"].as_bool() == Some(true) {
            one["msg_id"] = json!(format!("{}{number}", asked["value"].as_str().unwrap_or("")));
        }
        sending.spawn(async move {
            let said = publish(&js, &one).await;
            let mut found = found.lock().await;
            match said["seq"].as_u64() {
                Some(seq) => found.0.push((number, seq)),
                None => found.1.push((number, said.to_string())),
            }
        });
        sent += 1;
    }
    while sending.join_next().await.is_some() {}
    let found = found.lock().await;
    json!({"sent": sent, "acked": found.0, "failed": found.1})
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error + Send + Sync>> {
    let url = std::env::args().nth(1).expect("the URL of a NATS server");
    let js = jetstream::new(async_nats::connect(url).await?);
    let mut lines = BufReader::new(tokio::io::stdin()).lines();
    let stop = Arc::new(Notify::new());
    let mut running = None;
    while let Some(line) = lines.next_line().await? {
        let asked: Value = serde_json::from_str(&line)?;
        let said = match asked["op"].as_str() {
            Some("publish") => publish(&js, &asked).await,
            Some("many") => many(&js, &asked).await,
            Some("steady") => {
                running = Some(tokio::spawn(steady(js.clone(), asked, stop.clone())));
                json!({})
            }
            Some("stop") => {
                stop.notify_one();
                running.take().expect("a steady run").await?
            }
            other => json!({"failed": format!("no command {other:?}")}),
        };
        println!("{said}");
    }
    Ok(())
}
