//! Floor 4, receiving: push consumers call a listener, pull consumers are asked.

mod concurrent;
mod outcome;
mod pull;
mod pull_member;
mod push;
mod subscribe;

pub use outcome::{IntoOutcome, Listener, Outcome};
pub use pull::{Pull, PullConsumer, PullConsumerBuilder, PullStatus};
pub use push::{PushConsumer, PushConsumerBuilder};

use crate::broker::filter::Filter;
use crate::properties::{Properties, TAGS};
use crate::store::{Record, Select};

/// A subscription's filter, as the store applies it: the hash of the tag in the index, then the
/// tag itself, since hashes collide (FILT-1, FILT-3).
impl Select for Filter {
    #[inline]
    fn by_hash(&self, tag_hash: i32) -> bool {
        self.passes_hash(tag_hash)
    }

    #[inline]
    fn by_record(&self, record: &Record<'_>) -> bool {
        *self == Self::ALL || self.passes_tag(Properties(record.properties()).get(TAGS))
    }
}
