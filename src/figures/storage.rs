//! Who keeps what between steps: each parameter a row, each rank a column, each slice at its true place.
//!
//! All slices of a parameter are `s = ceil(numel / N)` elements with the padding, so rank r's begin at `r *
//! s` in every row, and one column per rank shows every parameter to its own scale.

use super::Figure;
use super::sheet::{Anchor, Fill, Frame, Key, MARGIN, Sheet, WIDTH};
use super::text_width;
use super::theme::{LABEL_PX, NOTE_PX, SMALL_PX};
use crate::human;
use crate::plan::partition::Partition;

/// How a parameter's states are held.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Held {
    /// Parameter, gradient and optimizer state in slices.
    Cut,
    /// The parameter (in stage 1 the gradient, too) whole on every rank, the rest in slices.
    WeightsWhole,
    /// Everything whole on every rank.
    Whole,
}

/// One parameter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Param {
    /// Its name.
    pub name: String,
    /// Elements.
    pub numel: usize,
    /// How it is held.
    pub held: Held,
}

/// A unit and the parameters that belong to it; one that several units use belongs to the first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unit {
    /// Its name, e.g. `h.3`.
    pub name: String,
    /// Its own parameters.
    pub params: Vec<Param>,
}

/// More rows than this are summed up.
const MAX_ROWS: usize = 40;
const ROW: f64 = 24.0;
/// The most room that names get.
const NAMES: f64 = 290.0;
/// Behind the name of what is whole besides.
const MARK: &str = "(whole, too)";

/// One row: a parameter, or a unit summed up.
struct Row {
    name: String,
    held: Held,
    numel: usize,
    slice: usize,
    /// Own elements of each rank: the range within the flat parameter, or their sum alone.
    of_rank: Vec<(usize, usize)>,
    is_sum: bool,
}

/// Draws it for `world_size` ranks.
pub fn figure(units: &[Unit], world_size: usize) -> Figure {
    let (shown, folded) = fold(units);
    let n_params: usize = units.iter().map(|u| u.params.len()).sum();
    let n_rows: usize = shown.iter().map(|(u, _)| u.params.len()).sum();
    let by_unit = n_rows > MAX_ROWS;
    let rows: Vec<Row> = match by_unit {
        false => shown.iter().flat_map(|(u, _)| &u.params).map(|p| of_param(p, world_size)).collect(),
        true => {
            shown.iter().filter(|(u, _)| !u.params.is_empty()).map(|(u, _)| of_unit(u, world_size)).collect()
        }
    };
    let ranks = format!("each of {}", human::counted(world_size, "rank"));
    let held = |held: Held| units.iter().flat_map(|u| &u.params).any(|p| p.held == held);
    let mut caption = match (held(Held::Whole), held(Held::WeightsWhole), held(Held::Cut)) {
        (true, ..) => format!("At rest {ranks} keeps all of every parameter: nothing is cut in stage 0."),
        (_, true, false) => format!(
            "At rest {ranks} keeps the weights whole, and of the states beside them its slice of every \
             parameter."
        ),
        (_, true, true) => format!(
            "At rest {ranks} keeps a slice of every parameter; small ones (marked) are kept whole besides, \
             and only their states are cut."
        ),
        _ => format!("At rest {ranks} keeps one slice of every parameter, and no rank a whole layer."),
    };
    if !folded.is_empty() {
        caption += &format!(" {folded}");
    }
    if by_unit {
        caption += &format!(
            " The {n_params} parameters are summed up by unit: a cell is filled by the elements that the \
             rank keeps of all the unit's parameters."
        );
    }
    Figure::new("storage", "Storage: which slices a rank keeps between steps", caption.clone(), |sheet| {
        let rule = match (held(Held::Whole), held(Held::Cut)) {
            (true, _) => {
                "Every rank keeps elements 0 to the last one of everything: parameter, gradient and \
                 optimizer state."
                    .to_string()
            }
            (_, cut) => format!(
                "Each parameter is flattened, padded to N x s with s = ceil(elements / N), and cut into N \
                 slices; rank r keeps elements r x s to (r + 1) x s{}.",
                if cut { "" } else { " of the states beside the weights, which are whole on every rank" }
            ),
        };
        let y = sheet.subtitle(&format!("{rule} N\u{a0}=\u{a0}{world_size}. {folded}"));
        let theme = sheet.theme;
        let mut keys = vec![Key::color(theme.color(0), "elements a rank keeps (a colour per rank)")];
        keys.push(Key {
            look: super::sheet::Look::Box(Fill::Hatch(theme.muted)),
            name: "padding: no element of the parameter".into(),
        });
        let y = sheet.legend(y, &keys);
        draw_rows(sheet, y, &rows, world_size)
    })
}

/// Runs of units with equal parameters, shown by their first; and a sentence that says so.
fn fold(units: &[Unit]) -> (Vec<(&Unit, usize)>, String) {
    let alike = |a: &Unit, b: &Unit| {
        let sizes = |u: &Unit| u.params.iter().map(|p| (p.numel, p.held)).collect::<Vec<_>>();
        !a.params.is_empty() && sizes(a) == sizes(b)
    };
    let mut shown: Vec<(&Unit, usize)> = Vec::new();
    for unit in units {
        match shown.last_mut() {
            Some((first, n)) if alike(first, unit) => *n += 1,
            _ => shown.push((unit, 1)),
        }
    }
    let few = units.iter().map(|u| u.params.len()).sum::<usize>() <= MAX_ROWS;
    if few {
        return (units.iter().map(|unit| (unit, 1)).collect(), String::new());
    }
    let runs = shown.iter().filter(|(_, n)| *n > 1);
    let words = runs.map(|(first, n)| format!("{} stands for {n} units of the same shapes.", first.name));
    let words = words.collect::<Vec<_>>().join(" ");
    (shown, words)
}

fn of_param(param: &Param, world_size: usize) -> Row {
    let partition = Partition::new(param.numel, world_size);
    let range = |r: usize| match param.held {
        Held::Whole => (0, param.numel),
        _ => (partition.shard_range(r).start, partition.shard_range(r).end),
    };
    Row {
        name: param.name.clone(),
        held: param.held,
        numel: param.numel,
        slice: partition.shard_numel(),
        of_rank: (0..world_size).map(range).collect(),
        is_sum: false,
    }
}

fn of_unit(unit: &Unit, world_size: usize) -> Row {
    let rows: Vec<Row> = unit.params.iter().map(|p| of_param(p, world_size)).collect();
    let kept = |r: usize| (0, rows.iter().map(|row| row.of_rank[r].1 - row.of_rank[r].0).sum());
    Row {
        name: unit.name.clone(),
        held: if rows.iter().any(|r| r.held != rows[0].held) { Held::WeightsWhole } else { rows[0].held },
        numel: rows.iter().map(|row| row.numel).sum(),
        slice: rows.iter().map(|row| row.slice).sum(),
        of_rank: (0..world_size).map(kept).collect(),
        is_sum: true,
    }
}

fn draw_rows(sheet: &mut Sheet<'_>, y: f64, rows: &[Row], n: usize) -> f64 {
    let theme = sheet.theme;
    let columns = ["elements", "slice", "padding"];
    let number_width = |pick: fn(&Row, usize) -> usize, name: &str| {
        let numbers = rows.iter().map(|row| text_width::width(&pick(row, n).to_string(), NOTE_PX, false));
        numbers.fold(text_width::width(name, NOTE_PX, false), f64::max) + 14.0
    };
    let pick: [fn(&Row, usize) -> usize; 3] = [|r, _| r.numel, |r, _| r.slice, |r, n| r.slice * n - r.numel];
    let widths: Vec<f64> = pick.iter().zip(columns).map(|(&pick, name)| number_width(pick, name)).collect();
    let right = WIDTH - MARGIN - widths.iter().sum::<f64>();
    let is_marked = |row: &Row| row.held == Held::WeightsWhole;
    let marks = rows.iter().any(is_marked) && !rows.iter().all(is_marked);
    let longest = rows.iter().map(|row| text_width::width(&row.name, LABEL_PX, false)).fold(60.0, f64::max);
    let names = (longest + 14.0).min(NAMES);
    let left = MARGIN + names + if marks { text_width::width(MARK, SMALL_PX, false) + 8.0 } else { 0.0 };
    let column = (right - left) / n as f64;
    let gap = if column > 12.0 {
        2.0
    } else if column > 5.0 {
        1.0
    } else {
        0.0
    };
    let top = y + 22.0;

    // Column heads, as many as have room.
    let every = (text_width::width("rank 00", NOTE_PX, false) / column).ceil().max(1.0) as usize;
    for rank in (0..n).step_by(every) {
        let name = if every == 1 { format!("rank {rank}") } else { rank.to_string() };
        let name = if every > 1 && rank == 0 { "rank 0".into() } else { name };
        sheet.note((left + column * rank as f64 + 1.0, top - 7.0), &name, Anchor::Start);
    }
    let mut x = right;
    for (name, width) in columns.iter().zip(&widths) {
        x += width;
        sheet.note((x, top - 7.0), name, Anchor::End);
    }
    for (i, row) in rows.iter().enumerate() {
        let y = top + ROW * i as f64;
        let name = text_width::fitted(&row.name, LABEL_PX, names - 8.0);
        sheet.write((MARGIN, y + 16.0), &name, LABEL_PX, theme.ink, Anchor::Start, false);
        if marks && is_marked(row) {
            sheet.write((left - 8.0, y + 16.0), MARK, SMALL_PX, theme.muted, Anchor::End, false);
        }
        for (rank, &(start, end)) in row.of_rank.iter().enumerate() {
            draw_cell(
                sheet,
                row,
                rank,
                (start, end),
                Frame::new(left + column * rank as f64, y + 2.0, column - gap, ROW - 5.0),
            );
        }
        let mut x = right;
        for (&pick, width) in pick.iter().zip(&widths) {
            x += width;
            sheet.note((x, y + 16.0), &pick(row, n).to_string(), Anchor::End);
        }
    }
    top + ROW * rows.len() as f64 + MARGIN
}

fn draw_cell(sheet: &mut Sheet<'_>, row: &Row, rank: usize, (start, end): (usize, usize), cell: Frame) {
    let theme = sheet.theme;
    let kept = end - start;
    let whole = if row.held == Held::Whole { row.numel } else { row.slice };
    let share = if whole == 0 { 0.0 } else { kept as f64 / whole as f64 };
    if share < 1.0 {
        sheet.frame(cell, Fill::Hatch(theme.muted), Some(theme.grid));
    }
    let color = theme.color(rank);
    let words = match (row.is_sum, kept) {
        (true, _) => format!("{}: rank {rank} keeps {kept} of {} elements", row.name, row.numel),
        (false, 0) => format!("{}: rank {rank} keeps nothing, its slice is padding", row.name),
        (false, _) => format!("{}: rank {rank} keeps elements {start}..{end} of {}", row.name, row.numel),
    };
    let mut data = vec![("param", row.name.clone()), ("rank", rank.to_string()), ("kept", kept.to_string())];
    if !row.is_sum {
        data.extend([("start", start.to_string()), ("end", end.to_string())]);
    }
    sheet.datum(Frame { w: cell.w * share, ..cell }, Fill::Plain(color), None, &words, &data);
    let label = if row.is_sum { kept.to_string() } else { format!("{start}..{end}") };
    for label in [label, start.to_string()] {
        let room = cell.w * share - 6.0;
        if kept > 0 && !(row.is_sum && label == "0") && text_width::width(&label, SMALL_PX, false) <= room {
            sheet.write(
                (cell.x + 4.0, cell.y + 13.5),
                &label,
                SMALL_PX,
                color.ink_on(),
                Anchor::Start,
                false,
            );
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn unit(name: &str, numels: &[usize]) -> Unit {
        let param =
            |(i, &numel): (usize, &usize)| Param { name: format!("{name}.p{i}"), numel, held: Held::Cut };
        Unit { name: name.into(), params: numels.iter().enumerate().map(param).collect() }
    }

    /// (param, rank, start, end, kept) of a cell.
    type Cell = (String, usize, Option<usize>, Option<usize>, usize);

    fn cells(svg: &str) -> Vec<Cell> {
        let document = roxmltree::Document::parse(svg).unwrap_or_else(|e| panic!("{e}\n{svg}"));
        let cells = document.descendants().filter(|n| n.has_attribute("data-param"));
        let number = |n: &roxmltree::Node<'_, '_>, name: &str| n.attribute(name).map(|v| v.parse().unwrap());
        cells
            .map(|n| {
                let name = n.attribute("data-param").unwrap().to_string();
                let (rank, kept) = (number(&n, "data-rank").unwrap(), number(&n, "data-kept").unwrap());
                (name, rank, number(&n, "data-start"), number(&n, "data-end"), kept)
            })
            .collect()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(40))]

        #[test]
        fn every_slice_of_every_parameter_is_there_at_its_true_offsets(
            numels in prop::collection::vec(1usize..300, 1..12),
            n in prop::sample::select(vec![1usize, 2, 3, 5, 7, 64])
        ) {
            let figure = figure(&[unit("embed", &numels)], n);
            for svg in [&figure.light, &figure.dark] {
                let cells = cells(svg);
                prop_assert_eq!(cells.len(), numels.len() * n);
                for (i, &numel) in numels.iter().enumerate() {
                    let s = numel.div_ceil(n);
                    for rank in 0..n {
                        let cell = &cells[i * n + rank];
                        let want = ((rank * s).min(numel), ((rank + 1) * s).min(numel));
                        let place = (cell.0.as_str(), cell.1, cell.2, cell.3, cell.4);
                        let name = format!("embed.p{i}");
                        prop_assert_eq!(
                            place,
                            (name.as_str(), rank, Some(want.0), Some(want.1), want.1 - want.0)
                        );
                    }
                }
            }
        }
    }

    #[test]
    fn blocks_of_one_shape_are_shown_once_and_the_caption_says_so() {
        let mut units = vec![unit("embed", &[100, 50])];
        units.extend((0..12).map(|i| unit(&format!("h.{i}"), &[7, 100, 3, 9])));
        units.push(unit("head", &[5]));
        let figure = figure(&units, 3);
        assert!(figure.caption.contains("h.0 stands for 12 units"), "{}", figure.caption);
        assert_eq!(cells(&figure.light).len(), 3 * (2 + 4 + 1));
        let few = super::figure(&units[..4], 3);
        assert_eq!(cells(&few.light).len(), 3 * (2 + 3 * 4), "few parameters are all shown");
    }

    #[test]
    fn two_hundred_different_tensors_are_summed_up_by_unit() {
        let units: Vec<Unit> = (0..50).map(|u| unit(&format!("h.{u}"), &[u + 1, 2 * u + 7, 3, 1])).collect();
        let figure = figure(&units, 7);
        assert!(figure.caption.contains("200 parameters are summed up by unit"), "{}", figure.caption);
        let cells = cells(&figure.light);
        assert_eq!(cells.len(), 50 * 7);
        let total: usize = cells.iter().map(|c| c.4).sum();
        assert_eq!(total, units.iter().flat_map(|u| &u.params).map(|p| p.numel).sum::<usize>());
        assert!(cells.iter().all(|c| c.2.is_none()), "a sum has no offsets");
    }

    #[test]
    fn what_is_kept_whole_is_whole_on_every_rank_and_marked() {
        let mut units = vec![unit("embed", &[10, 4])];
        units[0].params[1].held = Held::WeightsWhole;
        let mixed = figure(&units, 2);
        assert!(
            mixed.light.contains("(whole, too)") && mixed.caption.contains("marked"),
            "{}",
            mixed.caption
        );
        units[0].params.iter_mut().for_each(|p| p.held = Held::Whole);
        let cells = cells(&figure(&units, 2).light);
        assert!(cells.iter().all(|c| c.2 == Some(0) && c.4 >= 4), "{cells:?}");
    }
}
