use crate::store::Delivery;
use crate::sync::contain;
use std::fmt;

/// The user's own test (FILT-6).
pub(super) struct Predicate {
    test: Box<dyn Fn(&Delivery<'_>) -> bool + Send + Sync>,
}

impl Predicate {
    pub(super) fn new(test: impl Fn(&Delivery<'_>) -> bool + Send + Sync + 'static) -> Self {
        Self { test: Box::new(test) }
    }

    /// # Errors
    /// The test panicked.
    pub(super) fn matches(&self, delivery: &Delivery<'_>) -> Result<bool, Panicked> {
        contain(|| (self.test)(delivery)).map_err(|_| Panicked)
    }
}

/// A test has panicked, which counts as a message that it does not want.
#[derive(Debug)]
pub(crate) struct Panicked;

impl fmt::Debug for Predicate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Predicate")
    }
}
