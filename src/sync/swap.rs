//! A shared value that is read without a lock and replaced as a whole.
//!
//! Only tables that every send or read looks at are worth it: the segment list, a queue's chain
//! of index blocks and the topic table.

use super::Arc;

/// An `Arc` that can be replaced while others read it.
pub(crate) struct Swap<T> {
    inner: imp::Inner<T>,
}

impl<T> Swap<T> {
    pub(crate) fn new(value: T) -> Self {
        Self { inner: imp::Inner::from_pointee(value) }
    }

    /// The current value; stays what it is while the guard lives.
    pub(crate) fn load(&self) -> imp::Guard<T> {
        self.inner.load()
    }

    /// Replaces the value. Writers order themselves by a lock of their own.
    pub(crate) fn store(&self, value: T) {
        self.inner.store(Arc::new(value));
    }
}

impl<T> std::fmt::Debug for Swap<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Swap").finish_non_exhaustive()
    }
}

#[cfg(not(all(test, loom)))]
mod imp {
    pub(super) type Inner<T> = arc_swap::ArcSwap<T>;
    pub(crate) type Guard<T> = arc_swap::Guard<std::sync::Arc<T>>;
}

/// arc-swap is invisible to loom; a lock that loom sees stands in for it.
#[cfg(all(test, loom))]
mod imp {
    use super::Arc;

    pub(super) struct Inner<T>(loom::sync::Mutex<Arc<T>>);

    pub(crate) struct Guard<T>(Arc<T>);

    impl<T> std::ops::Deref for Guard<T> {
        type Target = Arc<T>;
        fn deref(&self) -> &Arc<T> {
            &self.0
        }
    }

    impl<T> Inner<T> {
        pub(super) fn from_pointee(value: T) -> Self {
            Self(loom::sync::Mutex::new(Arc::new(value)))
        }
        pub(super) fn load(&self) -> Guard<T> {
            Guard(self.0.lock().map_or_else(|e| e.into_inner().clone(), |v| v.clone()))
        }
        pub(super) fn store(&self, value: Arc<T>) {
            match self.0.lock() {
                Ok(mut held) => *held = value,
                Err(poisoned) => *poisoned.into_inner() = value,
            }
        }
    }
}
