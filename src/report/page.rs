//! `report.html`: the five answers and the figures in one file, without external resources or scripts. Light
//! or dark follows the reader's system.

use super::questions::{AnswerTable, AnsweredQuestion};
use crate::figures::Figure;
use crate::figures::html::{self, escape};
use std::fmt::Write;

const STYLE: &str = "\
:root{--page:#fff;--ink:#1a1a1a;--muted:#595959;--grid:#d9d9d9;--wash:#f4f5f7}\
body{font:16px/1.5 'DejaVu Sans',Verdana,Geneva,sans-serif;background:var(--page);color:var(--ink);margin:0}\
main{max-width:960px;margin:0 auto;padding:24px 16px 64px}\
h1{font-size:24px;margin:0 0 4px}h2{font-size:20px;margin:40px 0 8px}h3{font-size:16px;margin:20px 0 4px}\
p{margin:4px 0}.muted{color:var(--muted)}\
nav a{margin-right:14px;color:inherit}\
table{border-collapse:collapse;margin:8px 0;font-size:14px;font-variant-numeric:tabular-nums}\
th,td{padding:2px 14px 2px 0;text-align:right;border-bottom:1px solid var(--grid)}\
th:first-child,td:first-child{text-align:left}th{font-weight:normal;color:var(--muted)}\
figure{margin:28px 0 0;padding:0}figcaption{padding:6px 0 0;font-size:15px}\
pre{background:var(--wash);padding:12px;overflow-x:auto;font-size:13px}\
@media (prefers-color-scheme:dark){\
:root{--page:#14171c;--ink:#ececec;--muted:#aaaeb4;--grid:#3e434b;--wash:#1d2127}}";

/// The content of the page.
pub struct Page<'a> {
    /// The run directory and how it ended, as a line.
    pub heading: &'a str,
    /// Facts about the run: name and value.
    pub facts: &'a [(String, String)],
    /// The five answers, or why there are none.
    pub answers: Result<&'a [AnsweredQuestion], &'a str>,
    /// The figures.
    pub figures: &'a [Figure],
    /// Missing figures, and what would provide them.
    pub missing: &'a [String],
    /// The resolved deck.
    pub deck: &'a str,
}

impl Page<'_> {
    /// The whole page.
    pub fn html(&self) -> String {
        let mut out = String::new();
        self.write(&mut out).expect("writing to a String");
        out
    }

    fn write(&self, out: &mut String) -> std::fmt::Result {
        let heading = escape(self.heading);
        write!(out, "{}<body><main>", html::head(&format!("zero3 report: {}", self.heading), STYLE))?;
        write!(
            out,
            "<h1>zero3 report</h1><p>{heading}</p>\n<nav class=\"muted\"><a href=\"#answers\">Five \
             answers</a>"
        )?;
        for figure in self.figures {
            write!(out, "<a href=\"#{0}\">{0}</a>", figure.name)?;
        }
        out.push_str("<a href=\"#deck\">deck</a></nav>\n");
        write_table(
            out,
            &["", ""],
            self.facts.iter().map(|(name, value)| vec![name.clone(), value.clone()]),
        )?;
        out.push_str("<h2 id=\"answers\">Five answers</h2>\n");
        match self.answers {
            Err(why) => writeln!(out, "<p>{}</p>", escape(why))?,
            Ok(answers) => {
                for (i, AnsweredQuestion { question, sentences, table }) in answers.iter().enumerate() {
                    writeln!(out, "<section class=\"answer\"><h3>{}. {}</h3>", i + 1, escape(question))?;
                    for sentence in sentences {
                        writeln!(out, "<p>{}</p>", escape(sentence))?;
                    }
                    if let Some(AnswerTable { head, rows }) = table.as_ref().filter(|t| !t.rows.is_empty()) {
                        write_table(out, head, rows.iter().cloned())?;
                    }
                    out.push_str("</section>\n");
                }
            }
        }
        out.push_str("<h2>Figures</h2>\n");
        for missing in self.missing {
            writeln!(out, "<p class=\"muted\">Not plotted: {}.</p>", escape(missing))?;
        }
        for figure in self.figures {
            out.push_str(&html::element(figure));
        }
        writeln!(out, "<h2 id=\"deck\">Deck</h2><pre>{}</pre></main></body></html>", escape(self.deck))
    }
}

fn write_table(out: &mut String, head: &[&str], rows: impl Iterator<Item = Vec<String>>) -> std::fmt::Result {
    out.push_str("<div class=\"wide\"><table>");
    if head.iter().any(|name| !name.is_empty()) {
        let cells: String = head.iter().map(|name| format!("<th>{}</th>", escape(name))).collect();
        write!(out, "<tr>{cells}</tr>")?;
    }
    for row in rows {
        let cells: String = row.iter().map(|cell| format!("<td>{}</td>", escape(cell))).collect();
        write!(out, "<tr>{cells}</tr>")?;
    }
    out.push_str("</table></div>\n");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::questions;

    #[test]
    fn the_page_has_everything_in_itself_and_names_from_outside_are_text() {
        let five = questions::five(&questions::tests::summary());
        let figure = Figure::new("storage", "t", "a < b", |_| 60.0);
        let page = Page {
            heading: "runs/<tiny> & co",
            facts: &[("ranks".into(), "2".into())],
            answers: Ok(&five),
            figures: &[figure],
            missing: &["timeline: no trace".into()],
            deck: "[run]\ndir = \"<x>\"",
        }
        .html();
        for part in [
            "runs/&lt;tiny&gt; &amp; co",
            "<section class=\"answer\"><h3>5. ",
            "a &lt; b",
            "Not plotted: timeline: no trace.",
            "dir = &quot;&lt;x&gt;&quot;",
        ] {
            assert!(page.contains(part), "{part}");
        }
        let outside = page.replace("http://www.w3.org/2000/svg", "");
        for word in ["http:", "https:", "<script", "src=", "@import", "url(h"] {
            assert!(!outside.contains(word), "{word}");
        }
    }
}
