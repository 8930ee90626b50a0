//! What a subscription lets through, in up to three stages (FILT-1..3): the tag hash of the index
//! entry, the properties of the record, and the exact tag.

mod tags;

use crate::error::{Error, Result};
use crate::sync::Arc;
use std::fmt;
use tags::Tags;

/// Which messages of a topic a group wants.
///
/// Filters are equal if they let through the same tags, however they are written. Displayed, a
/// filter is its expression: `*`, or its tags in order.
///
/// ```
/// # use rocklet::Filter;
/// assert_eq!(Filter::tags("paid || refunded")?, Filter::tags("refunded||paid")?);
/// assert_eq!(Filter::tags("*")?, Filter::ALL);
/// # Ok::<_, rocklet::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Filter {
    kind: Kind,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Kind {
    All,
    Tags(Arc<Tags>),
}

impl Filter {
    /// Every message, tagged or not.
    pub const ALL: Self = Self { kind: Kind::All };

    /// Messages that have one of the tags in `expression`, separated by `||`; all messages if it
    /// is empty or `*` (SUB-2).
    ///
    /// # Errors
    ///
    /// [`Error::Filter`] if the expression names no tag: only separators, or only blanks (which
    /// RocketMQ takes, and then delivers nothing).
    pub fn tags(expression: &str) -> Result<Self> {
        if matches!(expression, "" | "*") {
            return Ok(Self::ALL);
        }
        match Tags::parse(expression) {
            Some(tags) => Ok(Self { kind: Kind::Tags(Arc::new(tags)) }),
            None => Err(Error::Filter {
                expression: expression.chars().take(256).collect(),
                reason: "names no tag; write `a || b` for tags, or `*` for all messages",
            }),
        }
    }

    /// Stage 1: whether a message with this tag hash may pass; equal hashes are told apart by
    /// [`passes_tag`](Self::passes_tag).
    #[inline]
    pub(crate) fn passes_hash(&self, hash: i32) -> bool {
        match &self.kind {
            Kind::All => true,
            Kind::Tags(tags) => tags.has_hash(hash),
        }
    }

    /// Stage 3: whether a message with exactly this tag passes.
    #[inline]
    pub(crate) fn passes_tag(&self, tag: Option<&str>) -> bool {
        match &self.kind {
            Kind::All => true,
            Kind::Tags(tags) => tag.is_some_and(|tag| tags.has(tag)),
        }
    }
}

impl fmt::Display for Filter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.kind {
            Kind::All => f.write_str("*"),
            Kind::Tags(tags) => tags.fmt(f),
        }
    }
}

impl TryFrom<&str> for Filter {
    type Error = Error;

    fn try_from(expression: &str) -> Result<Self> {
        Self::tags(expression)
    }
}

impl TryFrom<&String> for Filter {
    type Error = Error;

    fn try_from(expression: &String) -> Result<Self> {
        Self::tags(expression)
    }
}

impl TryFrom<String> for Filter {
    type Error = Error;

    fn try_from(expression: String) -> Result<Self> {
        Self::tags(&expression)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::Message;
    use crate::string_hash::string_hash;

    fn passes(filter: &Filter, tag: Option<&str>) -> bool {
        filter.passes_hash(tag.map_or(0, string_hash)) && filter.passes_tag(tag)
    }

    #[test]
    fn b_152_a_tag_is_accepted_exactly_if_an_expression_can_name_it() {
        let tagged = |tag| Message::new("t", b"x").tag(tag);
        for tag in
            ["a", "Aa", "a b", "a|b", "|", "|a", "a|", "*", "\u{3000}", "a\u{a0}", "\u{6807}"]
        {
            tagged(tag).validate(1).unwrap();
            // `*` alone means everything, so the tag needs company.
            let filter = Filter::tags(&format!("other || {tag}")).unwrap();
            assert!(filter.passes_tag(Some(tag)), "{tag:?}");
            assert!(filter.passes_hash(tagged(tag).tag_hash()), "{tag:?}");
        }
        for tag in ["", " ", " a", "a ", "\ta", "a||b", "||", "|||", "a\u{1}", "a\u{2}b"] {
            assert!(tagged(tag).validate(1).is_err(), "{tag:?}");
        }
    }

    #[test]
    fn sub_2_empty_and_star_mean_all() {
        for expression in ["", "*"] {
            let filter = Filter::tags(expression).unwrap();
            assert_eq!(filter, Filter::ALL);
            assert!(passes(&filter, None) && passes(&filter, Some("a")));
        }
    }

    #[test]
    fn sub_2_star_in_company_is_a_tag() {
        for expression in ["* || A", " * "] {
            let filter = Filter::tags(expression).unwrap();
            assert!(passes(&filter, Some("*")) && !passes(&filter, Some("B")));
        }
    }

    #[test]
    fn sub_2_an_expression_without_a_tag_is_refused() {
        for expression in ["||", "||||", " ", " || ", "\u{0}", "|| "] {
            assert!(
                matches!(Filter::tags(expression), Err(Error::Filter { .. })),
                "{expression:?}"
            );
        }
    }

    #[test]
    fn sub_4_filters_compare_by_what_they_let_through() {
        let filter = Filter::tags(" a||b || a").unwrap();
        assert_eq!(filter, Filter::try_from("b || a").unwrap());
        assert_eq!(filter, Filter::try_from(&String::from("b||a")).unwrap());
        assert_eq!(filter, Filter::try_from(String::from("a||b")).unwrap());
        assert_ne!(filter, Filter::tags("a").unwrap());
        assert_ne!(filter, Filter::ALL);
        assert_eq!(filter.to_string(), "a || b");
        assert_eq!(Filter::ALL.to_string(), "*");
    }

    #[test]
    fn filt_1_stage_1_goes_by_the_hash_alone() {
        let filter = Filter::tags("Aa || Tag31676").unwrap();
        assert!(filter.passes_hash(2112) && filter.passes_hash(-741_860_547));
        assert!(!filter.passes_hash(0) && !filter.passes_hash(1));
    }

    #[test]
    fn filt_3_an_untagged_message_passes_no_tag_filter() {
        assert!(!passes(&Filter::tags("a").unwrap(), None));
        // Its hash is 0 too, so only the exact test can tell.
        assert_eq!(string_hash("f5a5a608"), 0);
        let zero = Filter::tags("f5a5a608").unwrap();
        assert!(zero.passes_hash(0) && !zero.passes_tag(None) && passes(&zero, Some("f5a5a608")));
    }

    #[test]
    fn filt_7_b_152_tags_with_equal_hash_are_told_apart() {
        for (wanted, other) in [("Aa", "BB"), ("AaAa", "BBBB"), ("zzzzAa", "zzzzBB")] {
            assert_eq!(string_hash(wanted), string_hash(other));
            let filter = Filter::tags(wanted).unwrap();
            assert!(filter.passes_hash(string_hash(other)));
            assert!(passes(&filter, Some(wanted)) && !passes(&filter, Some(other)));
            assert!(!passes(&filter, Some("")) && !passes(&filter, None));
        }
    }
}
