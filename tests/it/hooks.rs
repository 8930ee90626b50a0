//! Send hooks (PROD-16).

use crate::support::*;
use rocklet::{Error, Message, Receipt, SendHook};
use std::sync::{Arc, Mutex};

type Log = Arc<Mutex<Vec<String>>>;

#[derive(Debug)]
struct Noting(&'static str, Log);

impl SendHook for Noting {
    fn before(&self, message: &Message<'_>) {
        self.1.lock().unwrap().push(format!("{} before {}", self.0, message.topic()));
    }

    fn after(&self, _: &Message<'_>, result: Result<&Receipt, &Error>) {
        let how = if result.is_ok() { "stored" } else { "refused" };
        self.1.lock().unwrap().push(format!("{} after {how}", self.0));
    }
}

#[derive(Debug)]
struct Panicking(fn());

impl SendHook for Panicking {
    fn before(&self, _: &Message<'_>) {
        (self.0)();
    }

    fn after(&self, _: &Message<'_>, _: Result<&Receipt, &Error>) {
        (self.0)();
    }
}

#[test]
fn prod_16_every_before_is_followed_by_one_after() {
    let scene = scene();
    let log = Log::default();
    let producer = scene.broker.producer();
    let producer = producer.with_hook(Noting("a", log.clone())).with_hook(Noting("b", log.clone()));
    let told = || std::mem::take(&mut *log.lock().unwrap());
    producer.send(&Message::new("t", "x".as_bytes())).unwrap();
    assert_eq!(told(), ["a before t", "b before t", "a after stored", "b after stored"]);
    producer.send(&Message::new("t", Vec::new())).unwrap_err();
    assert_eq!(told(), ["a before t", "b before t", "a after refused", "b after refused"]);
    scene.broker.close().unwrap();
    let clone = producer.clone();
    assert!(matches!(clone.send(&Message::new("t", "x".as_bytes())), Err(Error::Closed)));
    assert_eq!(told(), ["a before t", "b before t", "a after refused", "b after refused"]);
}

#[test]
fn prod_16_hooks_see_each_message_of_a_batch() {
    let scene = scene();
    let log = Log::default();
    let producer = scene.broker.producer().with_hook(Noting("a", log.clone()));
    let told = || std::mem::take(&mut *log.lock().unwrap());
    let batch = [Message::new("t", "x".as_bytes()), Message::new("t", "y".as_bytes())];
    producer.send_batch(&batch).unwrap();
    assert_eq!(told(), ["a before t", "a before t", "a after stored", "a after stored"]);
    let batch = [Message::new("t", "x".as_bytes()), Message::new("u", "y".as_bytes())];
    producer.send_batch(&batch).unwrap_err();
    assert_eq!(told(), ["a before t", "a before u", "a after refused", "a after refused"]);
}

/// What each message's hook was told: its offset, or the text of the error.
#[derive(Clone, Debug, Default)]
struct Results(Arc<Mutex<Vec<Result<u64, String>>>>);

impl SendHook for Results {
    fn after(&self, _: &Message<'_>, result: Result<&Receipt, &Error>) {
        let result = result.map(|receipt| receipt.offset).map_err(Error::to_string);
        self.0.lock().unwrap().push(result);
    }
}

#[test]
fn prod_16_hooks_are_told_what_the_call_returns() {
    let scene = scene();
    let results = Results::default();
    let producer = scene.broker.producer().with_hook(results.clone());
    let batch = ["x", "y"].map(|text| Message::new("t", text.as_bytes()).queue(0));
    producer.send_batch(&batch).unwrap();
    assert_eq!(std::mem::take(&mut *results.0.lock().unwrap()), [Ok(0), Ok(1)]);
    let batch = [Message::new("t", "x".as_bytes()), Message::new("t", Vec::new())];
    let error = producer.send_batch(&batch).unwrap_err();
    assert!(matches!(error, Error::EmptyBody));
    assert_eq!(*results.0.lock().unwrap(), [Err(error.to_string()), Err(error.to_string())]);
}

#[test]
fn prod_16_a_panic_in_a_hook_is_swallowed_and_the_others_are_called() {
    let scene = scene();
    for panic in [(|| panic!("planted")) as fn(), || std::panic::panic_any(Bomb)] {
        let log = Log::default();
        let producer = scene.broker.producer();
        let producer = producer.with_hook(Panicking(panic)).with_hook(Noting("a", log.clone()));
        producer.send(&Message::new("t", "x".as_bytes())).unwrap();
        producer.send_batch(&[Message::new("t", "x".as_bytes())]).unwrap();
        let expected = ["a before t", "a after stored", "a before t", "a after stored"];
        assert_eq!(*log.lock().unwrap(), expected);
    }
    assert_eq!(stored(&scene.broker, "t"), 4);
}
