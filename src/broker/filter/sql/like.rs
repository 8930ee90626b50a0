//! The pattern of LIKE: `%` stands for any characters, `_` for one.

/// A pattern that has been read.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Like {
    /// What stands before, between and behind the runs of any characters; one piece without a run.
    pieces: Box<[Piece]>,
}

#[derive(Debug, PartialEq, Eq)]
enum Piece {
    Text(Box<str>),
    /// With a place for any character, `None`, among its characters.
    Characters(Box<[Option<char>]>),
}

impl Like {
    /// Reads a pattern, in which `escape` takes the meaning from the `%`, the `_` or the `escape`
    /// behind it.
    ///
    /// # Errors
    /// What is wrong with it.
    pub(super) fn parse(pattern: &str, escape: Option<char>) -> Result<Self, &'static str> {
        let (mut pieces, mut piece) = (Vec::new(), Vec::new());
        let mut characters = pattern.chars();
        while let Some(c) = characters.next() {
            match c {
                _ if Some(c) == escape => match characters.next() {
                    Some(c) if c == '%' || c == '_' || Some(c) == escape => piece.push(Some(c)),
                    _ => return Err("the escape character stands before %, _ or itself only"),
                },
                '_' => piece.push(None),
                // Of several runs one is enough.
                '%' if piece.is_empty() && !pieces.is_empty() => {}
                '%' => pieces.push(Piece::of(std::mem::take(&mut piece))),
                _ => piece.push(Some(c)),
            }
        }
        pieces.push(Piece::of(piece));
        Ok(Self { pieces: pieces.into() })
    }

    /// Whether all of `text` fits.
    pub(super) fn fits(&self, text: &str) -> bool {
        match &*self.pieces {
            [first, between @ .., last] => {
                let inner = first.strip_start(text).and_then(|rest| last.strip_end(rest));
                // Each where it is found first, which leaves the most to those behind it.
                let rest =
                    inner.and_then(|text| between.iter().try_fold(text, |text, p| p.skip(text)));
                rest.is_some()
            }
            pieces => pieces.iter().all(|only| only.strip_start(text) == Some("")),
        }
    }
}

impl Piece {
    fn of(characters: Vec<Option<char>>) -> Self {
        match characters.iter().copied().collect::<Option<String>>() {
            Some(text) => Self::Text(text.into()),
            None => Self::Characters(characters.into()),
        }
    }

    /// What is left of a text that begins with this piece.
    fn strip_start<'t>(&self, text: &'t str) -> Option<&'t str> {
        match self {
            Self::Text(start) => text.strip_prefix(&**start),
            Self::Characters(wanted) => {
                let mut found = text.chars();
                let fits = wanted.iter().all(|wanted| is(*wanted, found.next()));
                fits.then_some(found.as_str())
            }
        }
    }

    /// What is left of a text that ends with this piece.
    fn strip_end<'t>(&self, text: &'t str) -> Option<&'t str> {
        match self {
            Self::Text(end) => text.strip_suffix(&**end),
            Self::Characters(wanted) => {
                let mut found = text.chars();
                let fits = wanted.iter().rev().all(|wanted| is(*wanted, found.next_back()));
                fits.then_some(found.as_str())
            }
        }
    }

    /// What stands in a text behind this piece, where it is found first.
    fn skip<'t>(&self, text: &'t str) -> Option<&'t str> {
        match self {
            Self::Text(wanted) => text.find(&**wanted).map(|at| &text[at + wanted.len()..]),
            // At worst the product of both lengths, which that of properties keeps in bounds.
            Self::Characters(_) => {
                let mut starts = text.char_indices().map(|(at, _)| &text[at..]);
                starts.find_map(|text| self.strip_start(text))
            }
        }
    }
}

/// Whether a character was found, and is the wanted one, if a certain one is.
fn is(wanted: Option<char>, found: Option<char>) -> bool {
    found.is_some_and(|found| wanted.is_none_or(|wanted| wanted == found))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fits(pattern: &str, text: &str) -> bool {
        Like::parse(pattern, Some('!')).unwrap().fits(text)
    }

    /// The definition, without any care for time.
    fn defined(pattern: &[char], text: &[char]) -> bool {
        match (pattern.split_first(), text.split_first()) {
            (None, _) => text.is_empty(),
            (Some(('%', after)), None) => defined(after, text),
            (Some(('%', after)), Some((_, rest))) => defined(after, text) || defined(pattern, rest),
            (Some(_), None) => false,
            (Some((part, after)), Some((c, rest))) => {
                (*part == '_' || part == c) && defined(after, rest)
            }
        }
    }

    #[test]
    fn patterns_fit_all_of_a_text() {
        assert!(fits("", "") && !fits("", "a") && fits("%", "") && !fits("_", ""));
        assert!(fits("ab%", "abc") && !fits("ab%", "cab") && fits("%b%", "abc"));
        assert!(fits("a_c", "a\u{4e2d}c") && !fits("a_c", "ac") && fits("__", "\u{1f680}x"));
        assert!(fits("100!%", "100%") && !fits("100!%", "1000") && fits("a!_!!", "a_!"));
        assert!(!fits("A%", "abc"), "case matters");
        assert!(Like::parse("a!", Some('!')).is_err() && Like::parse("!a", Some('!')).is_err());
        assert!(Like::parse("a\\%", None).unwrap().fits("a\\bc"), "no escape but one's own");
        assert!(Like::parse("%%", Some('%')).unwrap().fits("%"), "an escape that is a wildcard");
    }

    #[test]
    fn every_short_pattern_fits_what_its_definition_says() {
        let words =
            |letters: &[char], most: u32| -> Vec<String> {
                let mut words = vec![String::new()];
                for length in 1..=most {
                    let shorter: Vec<_> = words
                        .iter()
                        .filter(|word| word.len() == length as usize - 1)
                        .cloned()
                        .collect();
                    words.extend(shorter.iter().flat_map(|word| {
                        letters.iter().map(move |letter| format!("{word}{letter}"))
                    }));
                }
                words
            };
        let (patterns, texts) = (words(&['a', 'b', '_', '%'], 5), words(&['a', 'b'], 6));
        assert_eq!((patterns.len(), texts.len()), (1365, 127));
        for pattern in &patterns {
            let like = Like::parse(pattern, None).unwrap();
            for text in &texts {
                let characters = |text: &str| text.chars().collect::<Vec<_>>();
                let expected = defined(&characters(pattern), &characters(text));
                assert_eq!(like.fits(text), expected, "{pattern:?} {text:?}");
            }
        }
    }
    #[test]
    fn several_runs_in_a_row_are_one() {
        let same = ["a%", "a%%", "a%%%"].map(|pattern| Like::parse(pattern, None).unwrap());
        assert!(same[0] == same[1] && same[1] == same[2]);
        assert_ne!(Like::parse("%a", None), Like::parse("a%", None));
    }

    /// What takes the product of both lengths does not end here.
    #[test]
    fn b_154_a_long_pattern_takes_no_quadratic_time() {
        let (half, text) = ("a".repeat(1 << 20), "a".repeat(1 << 21));
        for pattern in ["%aaab", "%aaab%", "baaa%", "%_aaab", "%aaaba%aaab%"] {
            let pattern = pattern.replace("aaa", &half);
            assert!(!Like::parse(&pattern, None).unwrap().fits(&text));
        }
        let runs = Like::parse(&"%a".repeat(1 << 20), None).unwrap();
        assert!(runs.fits(&text) && !runs.fits(&text[1 + (1 << 20)..]));
    }
}
