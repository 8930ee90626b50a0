//! The flights file, and the message that each of its rows becomes.

use crate::Result;
use crate::log::FLIGHTS;
use csv::StringRecord;
use rocklet::Message;
use std::fs;
use std::ops::Range;
use std::path::Path;

/// The property that carries the row's number.
pub(crate) const ROW: &str = "row";

const SAMPLE: &str = include_str!("../data/flights-sample.csv");

/// The rows of a flights file.
#[derive(Debug)]
pub(crate) struct Rows {
    text: String,
    header: StringRecord,
    rows: Vec<(Range<usize>, StringRecord)>,
}

impl Rows {
    /// Reads a file, or the bundled sample.
    pub(crate) fn read(path: Option<&Path>) -> Result<Self> {
        match path {
            None => Self::parse(SAMPLE.to_owned()),
            Some(path) => fs::read_to_string(path)
                .map_err(Into::into)
                .and_then(Self::parse)
                .map_err(|error| format!("{}: {error}", path.display()).into()),
        }
    }

    fn parse(text: String) -> Result<Self> {
        let mut reader = csv::Reader::from_reader(text.as_bytes());
        let header = reader.headers()?.clone();
        for name in ["origin", "carrier", "flight", "tailnum"] {
            if !header.iter().any(|column| column == name) {
                return Err(format!("no column `{name}`: is this a flights file?").into());
            }
        }
        let mut rows = Vec::new();
        let mut cells = StringRecord::new();
        let mut start = usize::try_from(reader.position().byte())?;
        while reader.read_record(&mut cells)? {
            let end = usize::try_from(reader.position().byte())?;
            rows.push((start..end, cells.clone()));
            start = end;
        }
        Ok(Self { text, header, rows })
    }

    /// Returns how many rows there are, the header not counted.
    pub(crate) fn len(&self) -> u64 {
        self.rows.len() as u64
    }

    /// Returns the rows in file order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = Row<'_>> {
        (1..=self.len()).filter_map(|number| self.get(number))
    }

    /// Returns the row of this number; the first is 1.
    pub(crate) fn get(&self, number: u64) -> Option<Row<'_>> {
        let index = usize::try_from(number.checked_sub(1)?).ok()?;
        let (bytes, cells) = self.rows.get(index)?;
        let line = self.text[bytes.clone()].trim_matches(['\r', '\n']);
        Some(Row { number, line, header: &self.header, cells })
    }
}

/// One flight.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Row<'a> {
    /// Where it stands in the file; the first row is 1.
    pub(crate) number: u64,
    /// The row as the file has it, without the line end.
    pub(crate) line: &'a str,
    header: &'a StringRecord,
    cells: &'a StringRecord,
}

impl<'a> Row<'a> {
    /// Returns the message for this row.
    pub(crate) fn message(&self) -> Message<'a> {
        let mut message = Message::new(FLIGHTS, self.line.as_bytes());
        if let Some(origin) = self.origin() {
            message = message.tag(origin);
        }
        if let Some(flight) = self.flight() {
            message = message.key(flight);
        }
        // A flight without a tail number has no aircraft to keep in order: it goes round robin.
        if let Some(aircraft) = self.aircraft() {
            message = message.order_by(aircraft);
        }
        for (name, value) in self.properties() {
            message = message.property(name, value);
        }
        message.property(ROW, self.number.to_string())
    }

    /// Returns the airport it left from.
    pub(crate) fn origin(&self) -> Option<&'a str> {
        self.cell("origin")
    }

    /// Returns the tail number of its aircraft.
    pub(crate) fn aircraft(&self) -> Option<&'a str> {
        self.cell("tailnum")
    }

    /// Returns carrier and flight number, such as `UA1545`.
    pub(crate) fn flight(&self) -> Option<String> {
        Some(format!("{}{}", self.cell("carrier")?, self.cell("flight")?))
    }

    /// Returns the columns that hold something, with their names.
    pub(crate) fn properties(&self) -> impl Iterator<Item = (&'a str, &'a str)> {
        let cells = self.header.iter().zip(self.cells);
        cells.filter(|(_, cell)| !cell.trim().is_empty() && *cell != "NA")
    }

    /// Returns what a column holds, if it holds something.
    pub(crate) fn cell(&self, column: &str) -> Option<&'a str> {
        self.properties().find(|(name, _)| *name == column).map(|(_, cell)| cell)
    }
}
