//! `report.csv`: a row per metric.

use crate::accept::facts::AcceptanceFacts;
use crate::accept::verdict::metric::ReferenceSource;

/// The columns, in order.
const COLUMNS: [&str; 9] =
    ["metric", "value", "unit", "status", "reference", "low", "high", "source", "reason"];

/// The file. Numbers read back to the same bits.
pub fn table(facts: &AcceptanceFacts) -> Result<String, csv::Error> {
    let mut writer = csv::Writer::from_writer(Vec::new());
    writer.write_record(COLUMNS)?;
    let number = |x: Option<f64>| x.map_or(String::new(), |x| x.to_string());
    for metric in facts.sections.iter().flat_map(|s| &s.metrics) {
        writer.write_record([
            metric.name.as_str(),
            &number(metric.value),
            &metric.unit,
            metric.status.name(),
            &number(metric.reference),
            &number(metric.low),
            &number(metric.high),
            metric.source.map_or("", ReferenceSource::name),
            &metric.reason,
        ])?;
    }
    let bytes = writer.into_inner().map_err(|e| e.into_error())?;
    Ok(String::from_utf8(bytes).expect("text was written"))
}
