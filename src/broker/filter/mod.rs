//! What a subscription lets through, in up to three stages (FILT-1..3): the tag hash of the index
//! entry, the properties of the record with the exact tag, and what the user's own code says of the
//! whole message.

mod predicate;
mod sql;
mod tags;

use super::hold::Arrival;
use crate::error::{Error, Result};
use crate::properties::{Properties, TAGS};
use crate::store::{Delivery, Record, Store};
use crate::sync::Arc;
pub(crate) use predicate::Panicked;
use predicate::Predicate;
use sql::Sql;
use std::fmt;
use tags::Tags;

/// Which messages of a topic a group wants.
///
/// A `&str` or a `String` in its place is a tag expression. Filters are equal if they demand the
/// same, however it is written; a predicate is equal to itself alone, in clones of the filter.
/// Displayed, a filter is its expressions: `*` for all, tags in order.
///
/// ```
/// # use rocklet::Filter;
/// assert_eq!(Filter::tags("paid || refunded")?, Filter::tags("refunded||paid")?);
/// assert_eq!(Filter::tags("*")?, Filter::ALL);
/// let large = Filter::tags("paid")?.and(Filter::sql("amount > 100 AND country IN ('FR', 'DE')")?);
/// assert_eq!(large.to_string(), "paid, and amount > 100 AND country IN ('FR', 'DE')");
/// # Ok::<_, rocklet::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Filter {
    /// Every one has to be passed, the cheapest first; none for all messages.
    tests: Option<Arc<[Test]>>,
}

#[derive(Clone, Debug)]
enum Test {
    Tags(Arc<Tags>),
    Sql(Arc<Sql>),
    Predicate(Arc<Predicate>),
}

impl Filter {
    /// Every message, tagged or not.
    pub const ALL: Self = Self { tests: None };

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
            Some(tags) => Ok(Self::of(Test::Tags(Arc::new(tags)))),
            None => Err(Error::Filter {
                expression: expression.chars().take(256).collect(),
                reason: "names no tag; write `a || b` for tags, or `*` for all messages",
            }),
        }
    }

    /// Messages whose properties, tag (`TAGS`) and keys (`KEYS`) make an SQL92 expression true.
    ///
    /// Conditions are `=`, `<>`, `>`, `>=`, `<`, `<=`, `BETWEEN`, `IN`, `LIKE`, `IS NULL`,
    /// `CONTAINS`, `STARTSWITH` and `ENDSWITH`, joined by `AND`, `OR` and `NOT`. Properties are
    /// texts: what one is compared with says how it is read, so that `amount > 100` wants a whole
    /// number of 32 bits, and `amount > 100.0` takes fractions, too. A property that cannot be
    /// read so, or is missing, makes no condition true that needs it (FILT-2, SQL-8).
    ///
    /// The results are RocketMQ's, with a few exceptions: text behind the expression is an error
    /// (SQL-3), and so is `NOT` right before a comparison, which binds tighter than in standard
    /// SQL (SQL-2): write `NOT (a = 1)`. `LIKE`, with `%`, `_` and `ESCAPE`, is added, and `0.0`
    /// is a number (SQL-5).
    ///
    /// # Errors
    ///
    /// [`Error::Sql`], with the place, if the expression cannot be understood, is longer than
    /// 256 KiB, or nested deeper than 256 levels.
    pub fn sql(expression: &str) -> Result<Self> {
        Ok(Self::of(Test::Sql(Arc::new(Sql::parse(expression)?))))
    }

    /// Messages for which `test` returns true (FILT-6). It is called without a lock by whoever
    /// reads: a worker of a push consumer, the caller of a poll, a pull or a browse; never by a
    /// producer. It may be called for a message more than once.
    ///
    /// A panic in it counts in [`Stats::panicked_filters`](crate::Stats::panicked_filters), and
    /// as a message that is not wanted.
    pub fn predicate(test: impl Fn(&Delivery<'_>) -> bool + Send + Sync + 'static) -> Self {
        Self::of(Test::Predicate(Arc::new(Predicate::new(test))))
    }

    /// Messages that pass this filter and `other`, too.
    #[must_use]
    pub fn and(&self, other: Self) -> Self {
        let mut tests: Vec<Test> = self.tests().iter().chain(other.tests()).cloned().collect();
        tests.sort_by_key(Test::stage);
        Self { tests: (!tests.is_empty()).then(|| tests.into()) }
    }

    /// Whether a message that was received passes.
    #[must_use]
    pub fn passes(&self, delivery: &Delivery<'_>) -> bool {
        self.check(delivery).unwrap_or(false)
    }

    /// Stage 1: whether a message with this tag hash may pass; equal hashes are told apart by
    /// [`check`](Self::check).
    #[inline]
    pub(crate) fn passes_hash(&self, hash: i32) -> bool {
        self.tests().iter().all(|test| match test {
            Test::Tags(tags) => tags.has_hash(hash),
            Test::Sql(_) | Test::Predicate(_) => true,
        })
    }

    /// Whether a message that has just been sent may pass, found by the thread that sent it:
    /// without allocating, and without the user's code.
    pub(crate) fn may_pass(&self, store: &Store, message: Arrival) -> bool {
        let by_sql = |sql: &Sql| {
            let matches = |record: &Record<'_>| sql.matches(Properties(record.properties()));
            // What cannot be read is left to whoever is woken to find out.
            store.with_record(message.position, matches).unwrap_or(true)
        };
        self.passes_hash(message.tag_hash)
            && self.tests().iter().all(|test| match test {
                Test::Sql(sql) => by_sql(sql),
                Test::Tags(_) | Test::Predicate(_) => true,
            })
    }

    /// Stages 2 and 3: whether a message passes.
    ///
    /// # Errors
    /// A predicate panicked.
    #[inline]
    pub(crate) fn check(&self, delivery: &Delivery<'_>) -> Result<bool, Panicked> {
        let Some(tests) = &self.tests else { return Ok(true) };
        let properties = Properties(delivery.record().properties());
        for test in &**tests {
            let passes = match test {
                Test::Tags(tags) => properties.get(TAGS).is_some_and(|tag| tags.has(tag)),
                Test::Sql(sql) => sql.matches(properties),
                Test::Predicate(predicate) => predicate.matches(delivery)?,
            };
            if !passes {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn of(test: Test) -> Self {
        Self { tests: Some(Arc::new([test])) }
    }

    #[inline]
    fn tests(&self) -> &[Test] {
        self.tests.as_deref().unwrap_or_default()
    }
}

impl Test {
    fn stage(&self) -> u8 {
        match self {
            Self::Tags(_) => 1,
            Self::Sql(_) => 2,
            Self::Predicate(_) => 3,
        }
    }
}

impl PartialEq for Test {
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Tags(a), Self::Tags(b)) => a == b,
            (Self::Sql(a), Self::Sql(b)) => a == b,
            (Self::Predicate(a), Self::Predicate(b)) => Arc::ptr_eq(a, b),
            _ => false,
        }
    }
}

impl Eq for Test {}

impl fmt::Display for Filter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.tests.is_none() {
            return f.write_str("*");
        }
        for (nth, test) in self.tests().iter().enumerate() {
            f.write_str(if nth > 0 { ", and " } else { "" })?;
            match test {
                Test::Tags(tags) => tags.fmt(f)?,
                Test::Sql(sql) => sql.fmt(f)?,
                Test::Predicate(_) => f.write_str("a predicate")?,
            }
        }
        Ok(())
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

/// Up to this many, looking at each is quicker than searching.
const FEW: usize = 8;

/// Whether `text` is one of `texts`, which are sorted.
#[inline]
fn is_among(texts: &[Box<str>], text: &str) -> bool {
    if texts.len() <= FEW {
        texts.iter().any(|known| **known == *text)
    } else {
        texts.binary_search_by(|known| (**known).cmp(text)).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::Message;
    use crate::string_hash::string_hash;

    fn passes(filter: &Filter, tag: Option<&str>) -> bool {
        filter.passes_hash(tag.map_or(0, string_hash)) && passes_tag(filter, tag)
    }

    /// The exact test alone.
    fn passes_tag(filter: &Filter, tag: Option<&str>) -> bool {
        filter.tests().iter().all(|test| match test {
            Test::Tags(tags) => tag.is_some_and(|tag| tags.has(tag)),
            other => panic!("{other:?}"),
        })
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
            assert!(passes_tag(&filter, Some(tag)), "{tag:?}");
            assert!(
                filter.passes_hash(tagged(tag).validate_content(1).unwrap().tag_hash),
                "{tag:?}"
            );
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
        assert!(zero.passes_hash(0) && !passes_tag(&zero, None) && passes(&zero, Some("f5a5a608")));
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
