//! `report.html`: the verdict, every metric, and the figures of `plots.rs` in the page itself. It needs
//! neither network nor scripts, and follows the light or dark mode of the reader's system.

use crate::accept::facts::AcceptanceFacts;
use crate::accept::verdict::Ending;
use crate::accept::verdict::metric::show;
use crate::figures::html::{self, escape};
use crate::human;
use jiff::Timestamp;
use std::collections::BTreeSet;
use std::fmt::{Error, Write};

const STYLE: &str = "\
:root{--page:#fff;--ink:#1a1a1a;--muted:#595959;--grid:#d9d9d9;--good:#17692a;--bad:#b00020}\
body{font:15px/1.45 'DejaVu Sans',Verdana,Geneva,sans-serif;background:var(--page);color:var(--ink);margin:0}\
main{max-width:1100px;margin:0 auto;padding:24px 16px 64px}h2{font-size:19px;margin:36px 0 8px}\
table{border-collapse:collapse;font-size:14px;font-variant-numeric:tabular-nums}\
td,th{padding:.2em .7em .2em 0;border-bottom:1px solid var(--grid);text-align:left;vertical-align:top}\
th{font-weight:normal;color:var(--muted)}td.n{text-align:right}td.r,th{white-space:nowrap}\
.PASS{color:var(--good)}.FAIL{color:var(--bad);font-weight:bold}.SKIPPED,.INFO{color:var(--muted)}\
figure{margin:20px 0 0}figcaption{color:var(--muted);max-width:960px}\
pre{overflow-x:auto;font-size:13px}\
@media (prefers-color-scheme:dark){\
:root{--page:#14171c;--ink:#ececec;--muted:#aaaeb4;--grid:#3e434b;--good:#6fcf8b;--bad:#ff8a80}}";

/// The page.
pub fn page(facts: &AcceptanceFacts) -> Result<String, Error> {
    let mut out = String::new();
    let line = facts.verdict.line();
    write!(out, "{}<body><main>", html::head(&format!("zero3 accept: {line}"), STYLE))?;
    let class = if facts.verdict.accepted { "PASS" } else { "FAIL" };
    let began =
        Timestamp::from_second(facts.job.started_unix as i64).map_or(String::new(), |t| format!(" from {t}"));
    let hosts: BTreeSet<&String> = facts.ranks.iter().filter_map(|own| own.get("host")).collect();
    let nodes = if hosts.len() == 1 { "1 node".into() } else { format!("{} nodes", hosts.len()) };
    write!(
        out,
        "<h1 class=\"{class}\">{}</h1><p>{} ranks on {nodes}, {}{began}</p><ul>",
        escape(&line),
        facts.job.n_ranks,
        human::seconds(facts.seconds)
    )?;
    for reason in &facts.verdict.reasons {
        write!(out, "<li>{}</li>", escape(reason))?;
    }
    out += "</ul>";
    #[cfg(feature = "figures")]
    for figure in super::plots::all(facts) {
        out += &html::element(&figure);
    }
    #[cfg(not(feature = "figures"))]
    write!(out, "<p>This program was built without the feature <code>figures</code>: no plots.</p>")?;
    for result in &facts.sections {
        write!(out, "<h2>{}</h2>", result.section)?;
        let (class, how) = match result.ending {
            Ending::Completed => ("INFO", "completed"),
            Ending::NotAsked => ("SKIPPED", "not asked for"),
            Ending::Skipped => ("FAIL", "skipped"),
            Ending::Failed => ("FAIL", "could not continue"),
            Ending::UnderWay => ("FAIL", "not over"),
        };
        let why =
            if result.reason.is_empty() { String::new() } else { format!(": {}", escape(&result.reason)) };
        write!(out, "<p class=\"{class}\">{how}{why}</p>")?;
        if result.metrics.is_empty() {
            continue;
        }
        out += "<div class=\"wide\"><table><tr><th></th><th>metric</th><th>value</th><th>unit</th>\
                <th>compared with</th><th>why</th></tr>";
        for m in &result.metrics {
            let value = m.value.map_or(String::new(), show);
            let reference = m.compared_with().unwrap_or_default();
            let (s, name, why) = (m.status.name(), escape(&m.name), escape(&m.reason));
            write!(
                out,
                "<tr><td class=\"{s}\">{s}</td><td>{name}</td><td class=\"n\">{value}</td><td>{}</td>\
                 <td class=\"r\">{reference}</td><td>{why}</td></tr>",
                m.unit
            )?;
        }
        out += "</table></div>";
    }
    out += "<h2>Ranks</h2><div class=\"wide\"><table>";
    for (rank, own) in facts.ranks.iter().enumerate() {
        let said: Vec<String> = own.iter().map(|(k, v)| format!("{}: {}", escape(k), escape(v))).collect();
        write!(out, "<tr><td class=\"n\">{rank}</td><td>{}</td></tr>", said.join("<br>"))?;
    }
    write!(out, "</table></div><h2>Deck</h2><pre>{}</pre></main></body></html>", escape(&facts.job.deck))?;
    Ok(out + "\n")
}
