//! The channel on which pull requests travel to their workers: many senders, many receivers,
//! unbounded (its length is bounded by the number of held queues and open runs).

#[cfg(test)]
pub(crate) mod contract;

pub(crate) use imp::{Receiver, Sender, channel};

#[cfg(not(all(test, loom)))]
mod imp {
    /// The sending half; clones feed the same channel.
    pub(crate) struct Sender<T>(crossbeam::channel::Sender<T>);

    /// The receiving half; clones compete for what is sent.
    pub(crate) struct Receiver<T>(crossbeam::channel::Receiver<T>);

    pub(crate) fn channel<T>() -> (Sender<T>, Receiver<T>) {
        let (sender, receiver) = crossbeam::channel::unbounded();
        (Sender(sender), Receiver(receiver))
    }

    impl<T> Sender<T> {
        /// Adds `value`; a channel that nobody receives from any more drops it.
        pub(crate) fn send(&self, value: T) {
            let _ = self.0.send(value);
        }
    }

    impl<T> Receiver<T> {
        /// Waits for the next value; `None` once all senders are gone and the channel is empty.
        pub(crate) fn recv(&self) -> Option<T> {
            self.0.recv().ok()
        }
    }

    impl<T> Clone for Sender<T> {
        fn clone(&self) -> Self {
            Self(self.0.clone())
        }
    }

    impl<T> Clone for Receiver<T> {
        fn clone(&self) -> Self {
            Self(self.0.clone())
        }
    }
}

/// crossbeam-channel is invisible to loom; a queue under a lock that loom sees stands in for it, and
/// keeps to the same [`contract`].
#[cfg(all(test, loom))]
mod imp {
    use crate::sync::{Arc, Condvar, Mutex, Rank};
    use std::collections::VecDeque;

    struct State<T> {
        values: VecDeque<T>,
        senders: usize,
        receivers: usize,
    }

    struct Inner<T> {
        state: Mutex<State<T>>,
        changed: Condvar,
    }

    pub(crate) struct Sender<T>(Arc<Inner<T>>);
    pub(crate) struct Receiver<T>(Arc<Inner<T>>);

    pub(crate) fn channel<T>() -> (Sender<T>, Receiver<T>) {
        let state =
            Mutex::new(Rank::Signal, State { values: VecDeque::new(), senders: 1, receivers: 1 });
        let inner = Arc::new(Inner { state, changed: Condvar::new() });
        (Sender(inner.clone()), Receiver(inner))
    }

    impl<T> Sender<T> {
        pub(crate) fn send(&self, value: T) {
            let mut state = self.0.state.lock();
            if state.receivers > 0 {
                state.values.push_back(value);
            }
            drop(state);
            #[cfg(not(broken_channel_silent))]
            self.0.changed.notify_all();
        }
    }

    impl<T> Receiver<T> {
        pub(crate) fn recv(&self) -> Option<T> {
            let mut state = self.0.state.lock();
            loop {
                if let Some(value) = state.values.pop_front() {
                    return Some(value);
                }
                if state.senders == 0 {
                    return None;
                }
                self.0.changed.wait(&mut state, None);
            }
        }
    }

    impl<T> Clone for Sender<T> {
        fn clone(&self) -> Self {
            self.0.state.lock().senders += 1;
            Self(self.0.clone())
        }
    }

    impl<T> Drop for Sender<T> {
        fn drop(&mut self) {
            let mut state = self.0.state.lock();
            state.senders -= 1;
            let ended = state.senders == 0;
            drop(state);
            #[cfg(not(broken_channel_end_silent))]
            if ended {
                self.0.changed.notify_all();
            }
        }
    }

    impl<T> Clone for Receiver<T> {
        fn clone(&self) -> Self {
            self.0.state.lock().receivers += 1;
            Self(self.0.clone())
        }
    }

    impl<T> Drop for Receiver<T> {
        fn drop(&mut self) {
            let mut state = self.0.state.lock();
            state.receivers -= 1;
            let left =
                if state.receivers == 0 { std::mem::take(&mut state.values) } else { [].into() };
            drop(state);
            drop(left);
        }
    }
}

impl<T> std::fmt::Debug for Sender<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Sender").finish_non_exhaustive()
    }
}

impl<T> std::fmt::Debug for Receiver<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Receiver").finish_non_exhaustive()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::contract::{Exchange, check_drops, check_receivers, check_senders};

    /// Runs what the model `channel` runs on the stand-in.
    #[test]
    fn crossbeams_channel_keeps_to_the_contract() {
        for _ in 0..500 {
            let exchange = Exchange::new(2);
            std::thread::scope(|scope| {
                scope.spawn(|| exchange.send_one());
                assert_eq!(exchange.receive_one(), [1]);
            });

            let exchange = Exchange::new(2);
            let received = std::thread::scope(|scope| {
                scope.spawn(|| exchange.send_one());
                scope.spawn(|| exchange.send_one());
                exchange.receive_all()
            });
            check_senders(&received);

            let exchange = Exchange::new(1);
            let (first, second) = std::thread::scope(|scope| {
                let first = scope.spawn(|| exchange.receive_all());
                scope.spawn(|| exchange.send_two());
                (exchange.receive_all(), first.join().unwrap())
            });
            check_receivers([&first, &second]);
        }
        check_drops();
    }
}
