//! The report: a table for people, JSON for programs.

use std::path::Path;
use std::{fmt, fs, thread};

use comfy_table::{CellAlignment, Table, presets};
use serde_json::{Value, json};

use crate::cases::Case;

const LEGEND: &str = "
Median (minimum - maximum). Percentiles are times in us. Ratio: rocklet / the other, run by run;
for msg/s more is better, for times less. A limit is what the machine allows, not a queue.
";

/// One case: for each contender and repetition a value in each unit.
pub(crate) struct Measured<'a> {
    case: &'a Case,
    messages: u64,
    pub(crate) rocklet: Vec<Vec<f64>>,
    /// In the order of the case; why there are no values, where there are none.
    pub(crate) others: Vec<Result<Vec<Vec<f64>>, String>>,
}

impl<'a> Measured<'a> {
    pub(crate) fn new(case: &'a Case, messages: u64) -> Self {
        let others = case.against.iter().map(|_| Ok(Vec::new())).collect();
        Self { case, messages, rocklet: Vec::new(), others }
    }

    fn lines(self) -> impl Iterator<Item = Line> {
        let case = self.case;
        let conditions = json!({
            "payload_bytes": case.size, "producers": case.producers, "batch": case.batch,
            "queues": case.queues, "in_flight": case.in_flight, "messages": self.messages,
        });
        case.against.iter().zip(self.others).flat_map(move |(contender, values)| {
            let line = |(index, unit): (usize, &&'static str)| Line {
                case: case.to_string(),
                conditions: conditions.clone(),
                unit,
                rocklet: self.rocklet.iter().map(|run| run[index]).collect(),
                beside: contender.to_string(),
                other: values.as_ref().map_err(String::clone).map(|runs| {
                    let pairs = self.rocklet.iter().zip(runs);
                    let ratio = pairs.map(|(own, other)| own[index] / other[index]).collect();
                    (runs.iter().map(|run| run[index]).collect(), ratio)
                }),
            };
            case.units().iter().enumerate().map(line).collect::<Vec<_>>()
        })
    }
}

/// One line of the table: rocklet beside one other.
struct Line {
    case: String,
    conditions: Value,
    unit: &'static str,
    rocklet: Spread,
    beside: String,
    /// The other's values and rocklet's divided by them, run by run.
    other: Result<(Spread, Spread), String>,
}

impl Line {
    fn is_behind(&self) -> bool {
        let more_is_better = self.unit == "msg/s";
        self.other.as_ref().is_ok_and(|(_, ratio)| (ratio.median() < 1.0) == more_is_better)
    }

    fn json(&self) -> Value {
        let mut line = json!({
            "case": self.case, "conditions": self.conditions, "unit": self.unit,
            "rocklet": self.rocklet.0, "beside": self.beside,
        });
        match &self.other {
            Ok((other, ratio)) => {
                (line["values"], line["ratios"]) = (json!(other.0), json!(ratio.0))
            }
            Err(why) => line["missing"] = json!(why),
        }
        line
    }
}

pub(crate) struct Report {
    conditions: Vec<(&'static str, String)>,
    lines: Vec<Line>,
}

impl Report {
    pub(crate) fn new(runs: usize, dir: &Path, problem: Option<&str>) -> Self {
        let cores = thread::available_parallelism().map_or(0, usize::from);
        let conditions = vec![
            ("host", format!("{cores} cores, {}", proc("/proc/cpuinfo", "model name"))),
            ("kernel", proc("/proc/sys/kernel/osrelease", "")),
            ("directory", dir.display().to_string()),
            ("runs", runs.to_string()),
            ("rocklet", "Flush::Every(500 ms), or EveryMessage where durable, 64 MiB segments, topic 5 B, tag 3 B".to_owned()),
            ("peers", problem.map_or("built".to_owned(), |why| format!("NOT BUILT: {why}"))),
        ];
        Self { conditions, lines: Vec::new() }
    }

    pub(crate) fn add(&mut self, measured: Measured<'_>) {
        self.lines.extend(measured.lines());
    }

    pub(crate) fn json(&self) -> Value {
        let conditions: Value =
            self.conditions.iter().map(|(name, text)| (*name, text.as_str())).collect();
        json!({ "conditions": conditions, "lines": self.lines.iter().map(Line::json).collect::<Vec<_>>() })
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut table = Table::new();
        table.load_style(presets::ASCII_MARKDOWN);
        table.set_header(["case", "unit", "rocklet", "beside", "its value", "ratio"]);
        for Line { case, unit, rocklet, beside, other, .. } in &self.lines {
            let (value, ratio) = match other {
                Ok((other, ratio)) => (other.to_string(), ratio.to_string()),
                Err(why) => (format!("missing: {why}"), "-".to_owned()),
            };
            table.add_row([case, *unit, &rocklet.to_string(), beside, &value, &ratio]);
        }
        for column in table.column_iter_mut().skip(2).step_by(2) {
            column.set_cell_alignment(CellAlignment::Right);
        }
        self.conditions.iter().try_for_each(|(name, text)| writeln!(f, "{name}: {text}"))?;
        writeln!(f, "{LEGEND}\n{table}\n")?;
        let behind: Vec<_> = self.lines.iter().filter(|line| line.is_behind()).collect();
        writeln!(f, "rocklet is behind in {} of {} lines:", behind.len(), self.lines.len())?;
        for Line { case, unit, beside, other, .. } in behind {
            let ratio = other.as_ref().map_or(f64::NAN, |(_, ratio)| ratio.median());
            writeln!(f, "- {case}, {unit}: {ratio:.2} x {beside}")?;
        }
        Ok(())
    }
}

/// One value for each repetition, the smallest first.
struct Spread(Vec<f64>);

impl Spread {
    fn median(&self) -> f64 {
        self.0.get(self.0.len() / 2).copied().unwrap_or(f64::NAN)
    }
}

impl FromIterator<f64> for Spread {
    fn from_iter<I: IntoIterator<Item = f64>>(values: I) -> Self {
        let mut values: Vec<f64> = values.into_iter().collect();
        values.sort_by(f64::total_cmp);
        Self(values)
    }
}

impl fmt::Display for Spread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let short = |value: f64| match value {
            1e7.. => format!("{:.1}M", value / 1e6),
            1e6.. => format!("{:.2}M", value / 1e6),
            1e3.. => format!("{:.0}k", value / 1e3),
            _ => format!("{value:.2}"),
        };
        let [least, .., most] = self.0[..] else { return f.write_str(&short(self.median())) };
        write!(f, "{} ({} - {})", short(self.median()), short(least), short(most))
    }
}

/// The value of the first line of a file of `/proc` that starts with `name`.
fn proc(path: &str, name: &str) -> String {
    let text = fs::read_to_string(path).unwrap_or_default();
    let line = text.lines().find(|line| line.starts_with(name)).unwrap_or("unknown");
    line.rsplit(": ").next().unwrap_or(line).to_owned()
}
