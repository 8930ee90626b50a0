//! What a channel keeps to, whichever it is: these scenes run on crossbeam's in the normal build, and
//! on its stand-in under loom, where a model can rely on no more.

use super::{Receiver, Sender, channel};
use crate::sync::{Arc, Mutex, Rank};

/// Senders and receivers that share a channel.
pub(crate) struct Exchange {
    /// Each is dropped by who has sent with it.
    senders: Mutex<Vec<Sender<u32>>>,
    receiver: Receiver<u32>,
}

impl Exchange {
    /// A channel with so many senders.
    pub(crate) fn new(senders: usize) -> Arc<Self> {
        let (sender, receiver) = channel();
        let senders = Mutex::new(Rank::Member, vec![sender; senders]);
        Arc::new(Self { senders, receiver })
    }

    /// Sends 1 and 2.
    pub(crate) fn send_two(&self) -> Vec<u32> {
        let sender = self.sender();
        sender.send(1);
        sender.send(2);
        vec![]
    }

    /// Sends 1.
    pub(crate) fn send_one(&self) -> Vec<u32> {
        self.sender().send(1);
        vec![]
    }

    /// Receives one value, of a channel that need not end.
    pub(crate) fn receive_one(&self) -> Vec<u32> {
        self.receiver.recv().into_iter().collect()
    }

    /// Receives until the channel ends.
    pub(crate) fn receive_all(&self) -> Vec<u32> {
        let receiver = self.receiver.clone();
        std::iter::from_fn(|| receiver.recv()).collect()
    }

    fn sender(&self) -> Sender<u32> {
        self.senders.lock().pop().expect("a sender is left")
    }
}

/// What two senders send arrives, and then the channel ends.
pub(crate) fn check_senders(received: &[u32]) {
    assert_eq!(received, [1, 1], "what was sent did not arrive once");
}

/// What one sender sends goes to one of two receivers each, in order, and both see the end.
pub(crate) fn check_receivers(received: [&[u32]; 2]) {
    assert!(received.iter().all(|values| values.is_sorted()), "values overtook each other");
    let mut all = received.concat();
    all.sort_unstable();
    assert_eq!(all, [1, 2], "what was sent did not arrive once");
}

/// What nobody receives any more goes at once, and with the last receiver what still waits.
pub(crate) fn check_drops() {
    let value = Arc::new(());
    let (sender, receiver) = channel();
    let clone = receiver.clone();
    sender.send(value.clone());
    drop(receiver);
    assert_eq!(Arc::strong_count(&value), 2, "a receiver is left");
    drop(clone);
    assert_eq!(Arc::strong_count(&value), 1, "it waits for nobody");
    sender.send(value.clone());
    assert_eq!(Arc::strong_count(&value), 1, "it was sent to nobody");
}
