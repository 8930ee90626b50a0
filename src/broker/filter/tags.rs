use super::{FEW, is_among};
use crate::names::trim;
use crate::string_hash::string_hash;
use std::fmt;

/// A set of tags, at least one.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Tags {
    /// Sorted, each once.
    names: Vec<Box<str>>,
    /// Sorted, each once; fewer than names where hashes collide.
    hashes: Vec<i32>,
}

impl Tags {
    /// Reads tags separated by `||`; `None` if there are none (SUB-2).
    pub(super) fn parse(expression: &str) -> Option<Self> {
        let tags = expression.split("||").map(trim).filter(|tag| !tag.is_empty());
        let names: Vec<Box<str>> = sorted(tags.map(Box::from).collect());
        let hashes = sorted(names.iter().map(|tag| string_hash(tag)).collect());
        (!names.is_empty()).then_some(Self { names, hashes })
    }

    #[inline]
    pub(super) fn has_hash(&self, hash: i32) -> bool {
        if self.hashes.len() <= FEW {
            self.hashes.contains(&hash)
        } else {
            self.hashes.binary_search(&hash).is_ok()
        }
    }

    #[inline]
    pub(super) fn has(&self, tag: &str) -> bool {
        is_among(&self.names, tag)
    }
}

impl fmt::Display for Tags {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.names.join(" || "))
    }
}

fn sorted<T: Ord>(mut items: Vec<T>) -> Vec<T> {
    items.sort_unstable();
    items.dedup();
    items
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sub_2_recorded_expressions() {
        let file = include_str!("../../../tests/vectors/tags.json");
        let cases: Vec<serde_json::Value> = serde_json::from_str(file).unwrap();
        let mut compared = 0;
        for case in cases.iter().filter(|case| case["op"] == "buildSubscriptionData") {
            let Some(tags) = case["expected"]["tags_set"].as_array() else { continue };
            let Some(parsed) = case["sub_string"].as_str().and_then(Tags::parse) else {
                assert!(tags.is_empty(), "{case}");
                continue;
            };
            let mut names: Vec<_> = tags.iter().map(|tag| tag.as_str().unwrap()).collect();
            names.sort_unstable();
            assert_eq!(
                parsed.names.iter().map(|name| &**name).collect::<Vec<_>>(),
                names,
                "{case}"
            );
            let mut hashes: Vec<i32> =
                serde_json::from_value(case["expected"]["code_set"].clone()).unwrap();
            hashes.sort_unstable();
            assert_eq!(parsed.hashes, hashes, "{case}");
            compared += 1;
        }
        assert!(compared > 0);
    }

    #[test]
    fn sub_2_separators_are_taken_from_the_left() {
        let names = |expression| Tags::parse(expression).unwrap().to_string();
        assert_eq!(names("a|||b"), "a || |b");
        assert_eq!(names("a|||"), "a || |");
        assert_eq!(names("|"), "|");
        assert_eq!(names(" a b ||a b"), "a b");
    }

    #[test]
    fn filt_1_large_sets_are_searched_alike() {
        let tags: Vec<String> = (0..100).map(|i| format!("Tag{i}")).collect();
        for count in [1, FEW, FEW + 1, 100] {
            let set = Tags::parse(&tags[..count].join("||")).unwrap();
            for (i, tag) in tags.iter().enumerate() {
                assert_eq!(set.has(tag), i < count);
                assert_eq!(set.has_hash(string_hash(tag)), i < count);
            }
        }
    }
}
