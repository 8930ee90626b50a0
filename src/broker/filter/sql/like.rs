//! The pattern of LIKE: `%` stands for any characters, `_` for one.

/// A pattern that has been read.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Like {
    parts: Box<[Part]>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    /// This character.
    One(char),
    /// Any one character.
    Any,
    /// Any number of characters.
    Run,
}

impl Like {
    /// Reads a pattern, in which `escape` takes the meaning from the `%`, the `_` or the `escape`
    /// behind it.
    ///
    /// # Errors
    /// What is wrong with it.
    pub(super) fn parse(pattern: &str, escape: Option<char>) -> Result<Self, &'static str> {
        let mut parts = Vec::new();
        let mut characters = pattern.chars();
        while let Some(c) = characters.next() {
            let part = match c {
                _ if Some(c) == escape => match characters.next() {
                    Some(c) if c == '%' || c == '_' || Some(c) == escape => Part::One(c),
                    _ => return Err("the escape character stands before %, _ or itself only"),
                },
                '_' => Part::Any,
                '%' => Part::Run,
                _ => Part::One(c),
            };
            if part != Part::Run || parts.last() != Some(&Part::Run) {
                parts.push(part);
            }
        }
        Ok(Self { parts: parts.into() })
    }

    /// Whether all of `text` fits.
    pub(super) fn fits(&self, text: &str) -> bool {
        let (mut parts, mut rest) = (&*self.parts, text);
        // Where to go on if what follows the last run does not fit: a run that takes one
        // character more. An earlier run never has to, since the last one takes as much.
        let mut retry: Option<(&[Part], &str)> = None;
        loop {
            let mut characters = rest.chars();
            let fits = match parts.split_first() {
                Some((Part::Run, after)) => {
                    (parts, retry) = (after, Some((after, rest)));
                    continue;
                }
                Some((part, after)) => {
                    parts = after;
                    characters.next().is_some_and(|c| *part == Part::Any || *part == Part::One(c))
                }
                None if rest.is_empty() => return true,
                None => false,
            };
            if fits {
                rest = characters.as_str();
                continue;
            }
            let Some((after, from)) = retry else { return false };
            let mut characters = from.chars();
            if characters.next().is_none() {
                return false;
            }
            (parts, rest) = (after, characters.as_str());
            retry = Some((after, rest));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fits(pattern: &str, text: &str) -> bool {
        Like::parse(pattern, Some('!')).unwrap().fits(text)
    }

    /// The definition, without any care for time.
    fn defined(parts: &[Part], text: &[char]) -> bool {
        match (parts.split_first(), text.split_first()) {
            (None, _) => text.is_empty(),
            (Some((Part::Run, after)), None) => defined(after, text),
            (Some((Part::Run, after)), Some((_, rest))) => {
                defined(after, text) || defined(parts, rest)
            }
            (Some(_), None) => false,
            (Some((part, after)), Some((c, rest))) => {
                (*part == Part::Any || *part == Part::One(*c)) && defined(after, rest)
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
                let expected = defined(&like.parts, &text.chars().collect::<Vec<_>>());
                assert_eq!(like.fits(text), expected, "{pattern:?} {text:?}");
            }
        }
    }
}
