//! The common misconception compared with the actual scheme, and the cost of each for this model.
//!
//! The misconception: whole units belong to ranks, and the owner broadcasts them. It is drawn only for
//! comparison, crossed out and marked WRONG: nothing here trains that way.

use super::Figure;
use super::sheet::{Anchor, Fill, Frame, MARGIN, Sheet, WIDTH};
use super::text_width;
use super::theme::{LABEL_PX, NOTE_PX, SMALL_PX, TITLE_PX};
use crate::human;

/// The cost of an ownership scheme, one number per rank.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Cost {
    /// Model state of a rank between steps.
    pub resident_bytes: Vec<u64>,
    /// Payload a rank receives in one step.
    pub received_bytes: Vec<u64>,
}

/// Both schemes for one model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ownership {
    /// Ranks.
    pub world_size: usize,
    /// Units and their element counts, in order.
    pub units: Vec<(String, usize)>,
    /// The rank that would own each unit.
    pub owners: Vec<usize>,
    /// Whole units, broadcast.
    pub wrong: Cost,
    /// Slices, gathered.
    pub right: Cost,
    /// A remark about the figures, e.g. that the run itself was of another stage.
    pub remark: String,
}

/// If there are more units than this, only the first and last ones are shown.
const MAX_UNITS: usize = 16;
const PANEL: f64 = (WIDTH - 3.0 * MARGIN) / 2.0;

impl Ownership {
    /// Draws it.
    pub fn figure(&self) -> Figure {
        let most = |bytes: &[u64]| human::bytes(bytes.iter().copied().max().unwrap_or(0));
        let caption = format!(
            "Were whole units owned (left, WRONG), the fullest of {} would keep {} and each unit would come \
             from one rank; cut inside each parameter (right), every rank keeps {} and sends its slices of \
             every unit. {}",
            human::counted(self.world_size, "rank"),
            most(&self.wrong.resident_bytes),
            most(&self.right.resident_bytes),
            self.remark
        );
        let caption = caption.trim_end().to_string();
        Figure::new("ownership", "Not whole layers, but slices of every parameter", caption, |sheet| {
            let words = "Left: the picture that is often drawn, for this model. Right: what is done.";
            let y =
                sheet.subtitle(&format!("{words} N\u{a0}=\u{a0}{}. {}", self.world_size, self.remark)) + 6.0;
            let left = self.panel(sheet, MARGIN, y, true);
            let right = self.panel(sheet, 2.0 * MARGIN + PANEL, y, false);
            self.table(sheet, left.max(right) + 10.0)
        })
    }

    fn panel(&self, sheet: &mut Sheet<'_>, x: f64, y: f64, is_wrong: bool) -> f64 {
        let theme = sheet.theme;
        let (head, color, words) = match is_wrong {
            true => ("WRONG", theme.wrong, "a rank owns whole layers and broadcasts them"),
            false => ("RIGHT", theme.ink, "every rank keeps a slice of every parameter"),
        };
        sheet.write((x, y + 16.0), head, TITLE_PX, color, Anchor::Start, true);
        let room = text_width::width(head, TITLE_PX, true) + 10.0;
        sheet.write((x + room, y + 16.0), words, LABEL_PX, theme.muted, Anchor::Start, false);

        let n = self.world_size;
        let names = 78.0;
        let (left, width) = (x + names, PANEL - names);
        let column = width / n as f64;
        let top = y + 46.0;
        let every = (text_width::width("rank 00", SMALL_PX, false) / column).ceil().max(1.0) as usize;
        for rank in (0..n).step_by(every) {
            let name = if every == 1 || rank == 0 { format!("rank {rank}") } else { rank.to_string() };
            sheet.write(
                (left + column * rank as f64, top - 6.0),
                &name,
                SMALL_PX,
                theme.muted,
                Anchor::Start,
                false,
            );
        }
        let shown = self.shown();
        let gap = if column > 12.0 { 2.0 } else { 0.0 };
        for (i, unit) in shown.iter().enumerate() {
            let y = top + 22.0 * i as f64;
            let Some(unit) = *unit else {
                let words = format!("... {} more units", self.units.len() + 1 - shown.len());
                sheet.note((x, y + 14.0), &words, Anchor::Start);
                continue;
            };
            let (name, numel) = &self.units[unit];
            let fitted = text_width::fitted(name, NOTE_PX, names - 8.0);
            sheet.write((x, y + 14.0), &fitted, NOTE_PX, theme.ink, Anchor::Start, false);
            for rank in 0..n {
                let frame = Frame::new(left + column * rank as f64, y + 2.0, column - gap, 16.0);
                let data = [
                    ("picture", if is_wrong { "wrong" } else { "right" }.to_string()),
                    ("unit", name.clone()),
                    ("rank", rank.to_string()),
                ];
                match (is_wrong, self.owners[unit] == rank) {
                    (false, _) => {
                        let words = format!("{name}: rank {rank} keeps a slice of each of its parameters");
                        sheet.datum(frame, Fill::Plain(theme.color(rank)), None, &words, &data);
                    }
                    (true, true) => {
                        let words = format!("WRONG: rank {rank} would own all {numel} elements of {name}");
                        sheet.frame(frame, Fill::Plain(theme.color(rank)), None);
                        sheet.datum(frame, Fill::Cross(theme.page), Some(theme.wrong), &words, &data);
                    }
                    (true, false) => sheet.frame(frame, Fill::None, Some(theme.grid)),
                }
            }
        }
        let bottom = top + 22.0 * shown.len() as f64;
        if is_wrong {
            // Crossed out, so that it does not depend on color vision.
            sheet.line((left - 4.0, top - 2.0), (x + PANEL, bottom), theme.wrong, 2.5, None);
            sheet.line((left - 4.0, bottom), (x + PANEL, top - 2.0), theme.wrong, 2.5, None);
        }
        bottom
    }

    fn shown(&self) -> Vec<Option<usize>> {
        let n = self.units.len();
        if n <= MAX_UNITS {
            return (0..n).map(Some).collect();
        }
        let half = MAX_UNITS / 2;
        (0..half).map(Some).chain([None]).chain((n - half + 1..n).map(Some)).collect()
    }

    fn table(&self, sheet: &mut Sheet<'_>, y: f64) -> f64 {
        let theme = sheet.theme;
        let columns = [WIDTH - MARGIN - 250.0, WIDTH - MARGIN];
        let y = y + 14.0;
        sheet.write((columns[0], y), "WRONG", NOTE_PX, theme.wrong, Anchor::End, true);
        sheet.write((columns[1], y), "RIGHT", NOTE_PX, theme.ink, Anchor::End, true);
        let rows = [
            ("Model state at rest", "resident", [&self.wrong.resident_bytes, &self.right.resident_bytes]),
            ("Received in one step", "received", [&self.wrong.received_bytes, &self.right.received_bytes]),
        ];
        let mut at = y + 6.0;
        for (what, key, bytes_of) in rows {
            for (which, is_most) in [("the fullest rank", true), ("the emptiest rank", false)] {
                let which = match (key, is_most) {
                    ("received", true) => "by the rank that receives most",
                    ("received", false) => "by the rank that receives least",
                    _ => which,
                };
                sheet.line((MARGIN, at), (WIDTH - MARGIN, at), theme.grid, 1.0, None);
                sheet.write(
                    (MARGIN, at + 17.0),
                    &format!("{what}, {which}"),
                    LABEL_PX,
                    theme.ink,
                    Anchor::Start,
                    false,
                );
                for (x, (picture, bytes)) in columns.iter().zip(["wrong", "right"].into_iter().zip(bytes_of))
                {
                    let bytes = bytes.iter().copied();
                    let bytes = if is_most { bytes.max() } else { bytes.min() }.unwrap_or(0);
                    let shown = match bytes {
                        0..1024 => human::bytes(bytes),
                        _ => format!("{} ({bytes} B)", human::bytes(bytes)),
                    };
                    let frame = Frame::new(x - 210.0, at + 1.0, 212.0, 23.0);
                    let name = format!("{key}-{}", if is_most { "most" } else { "least" });
                    sheet.datum(
                        frame,
                        Fill::None,
                        None,
                        &shown,
                        &[("picture", picture.into()), (&name, bytes.to_string())],
                    );
                    sheet.write((*x, at + 17.0), &shown, LABEL_PX, theme.ink, Anchor::End, false);
                }
                at += 25.0;
            }
        }
        at + MARGIN
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ownership(n_units: usize, n: usize) -> Ownership {
        let per_rank = n_units.div_ceil(n);
        Ownership {
            world_size: n,
            units: (0..n_units).map(|u| (format!("h.{u}"), 100 + u)).collect(),
            owners: (0..n_units).map(|u| u / per_rank).collect(),
            wrong: Cost { resident_bytes: (0..n as u64).collect(), received_bytes: vec![5; n] },
            right: Cost { resident_bytes: vec![7777; n], received_bytes: vec![8888; n] },
            remark: String::new(),
        }
    }

    #[test]
    fn the_wrong_picture_says_so_in_words_and_strokes_and_each_rank_is_there() {
        for (n_units, n) in [(6, 1), (6, 3), (14, 5), (50, 7), (4, 64)] {
            let figure = ownership(n_units, n).figure();
            for svg in [&figure.light, &figure.dark] {
                let document = roxmltree::Document::parse(svg).unwrap_or_else(|e| panic!("{e}\n{svg}"));
                let cells = |picture: &'static str| {
                    let of = move |node: &roxmltree::Node<'_, '_>| {
                        node.attribute("data-picture") == Some(picture) && node.has_attribute("data-rank")
                    };
                    document.descendants().filter(of).collect::<Vec<_>>()
                };
                let n_shown = n_units.min(MAX_UNITS - 1 + usize::from(n_units == MAX_UNITS));
                assert_eq!(cells("right").len(), n_shown * n);
                assert_eq!(cells("wrong").len(), n_shown, "one owner each");
                assert!(cells("wrong").iter().all(|c| c.attribute("fill").unwrap().contains("cross")));
                assert!(
                    document.descendants().any(|node| node.text().is_some_and(|text| text.trim() == "WRONG"))
                );
                let number = |picture: &str, name: &str| {
                    let of = |node: &roxmltree::Node<'_, '_>| {
                        node.attribute("data-picture") == Some(picture) && node.has_attribute(name)
                    };
                    document.descendants().find(of).unwrap().attribute(name).unwrap().to_string()
                };
                assert_eq!(number("wrong", "data-resident-most"), (n - 1).to_string());
                assert_eq!(number("right", "data-received-least"), "8888");
            }
        }
    }
}
