//! A drawing surface: text, boxes and lines at positions in px, a title, legends, and embedded charts.
//!
//! Must not know: the content.

use super::text_width;
use super::theme::{Color, LABEL_PX, NOTE_PX, TITLE_PX, Theme};
use crate::foreign::on_a_line;
use svg::node::element::{Definitions, Group, Line, Path, Pattern, Rectangle, Text, Title};
use svg::node::{Blob, Value};
use svg::{Document, Node};

/// Width of every sheet.
pub const WIDTH: f64 = 960.0;
/// Blank space around.
pub const MARGIN: f64 = 24.0;

/// Anchor of a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Anchor {
    /// Its left end.
    Start,
    /// Its middle.
    Middle,
    /// Its right end.
    End,
}

/// A box.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Frame {
    /// Left edge.
    pub x: f64,
    /// Upper edge.
    pub y: f64,
    /// Width.
    pub w: f64,
    /// Height.
    pub h: f64,
}

impl Frame {
    /// From its upper left corner and its size.
    pub fn new(x: f64, y: f64, w: f64, h: f64) -> Self {
        Frame { x, y, w, h }
    }
}

/// Fill of a box.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fill {
    /// One color.
    Plain(Color),
    /// Hatched in a color: empty.
    Hatch(Color),
    /// Cross-hatched: wrong.
    Cross(Color),
    /// Nothing.
    None,
}

/// An entry of a legend.
#[derive(Debug, Clone, PartialEq)]
pub struct Key {
    /// Its symbol.
    pub look: Look,
    /// Its label.
    pub name: String,
}

/// Symbol of a legend entry.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Look {
    /// A filled box.
    Box(Fill),
    /// A line.
    Line(Color),
    /// A dashed line.
    Dashes(Color),
    /// A dot.
    Dot(Color),
}

impl Key {
    /// A box of a color.
    pub fn color(color: Color, name: impl Into<String>) -> Self {
        Key { look: Look::Box(Fill::Plain(color)), name: name.into() }
    }
}

/// A sheet under construction.
#[derive(Debug)]
pub struct Sheet<'a> {
    /// Its theme.
    pub theme: &'a Theme,
    /// Prefix that makes ids unique on a page with several figures.
    id: String,
    title: String,
    patterns: Vec<(String, Pattern)>,
    body: Group,
}

impl<'a> Sheet<'a> {
    /// A sheet with a title. `name` is unique among the figures of a page.
    pub fn new(theme: &'a Theme, name: &str, title: &str) -> Self {
        let id = format!("{name}-{}", theme.name);
        let mut sheet = Sheet { theme, id, title: title.into(), patterns: Vec::new(), body: Group::new() };
        sheet.write((MARGIN, 32.0), title, TITLE_PX, theme.ink, Anchor::Start, true);
        sheet
    }

    /// Lines of explanation under the title; returns their lower end.
    pub fn subtitle(&mut self, words: &str) -> f64 {
        self.paragraph((MARGIN, 52.0), words, WIDTH - 2.0 * MARGIN)
    }

    /// Broken into lines of at most `room` px, the first one with its baseline at `at`; returns their lower
    /// end.
    pub fn paragraph(&mut self, at: (f64, f64), words: &str, room: f64) -> f64 {
        let mut y = at.1;
        for line in text_width::wrapped(words, LABEL_PX, room) {
            self.write((at.0, y), &line, LABEL_PX, self.theme.muted, Anchor::Start, false);
            y += 18.0;
        }
        y
    }

    /// A legend in as many rows as necessary, the first one below `y`; returns its lower end.
    pub fn legend(&mut self, y: f64, keys: &[Key]) -> f64 {
        self.legend_within(MARGIN, WIDTH - MARGIN, y, keys)
    }

    /// The same between two edges.
    pub fn legend_within(&mut self, left: f64, right: f64, y: f64, keys: &[Key]) -> f64 {
        let (mut x, mut y) = (left, y);
        for Key { look, name } in keys {
            let room = 26.0 + text_width::width(name, NOTE_PX, false) + 18.0;
            if x > left && x + room - 18.0 > right {
                (x, y) = (left, y + 20.0);
            }
            let middle = y + 8.0;
            match *look {
                Look::Box(fill) => {
                    self.frame(Frame::new(x, y + 2.0, 18.0, 12.0), fill, Some(self.theme.muted))
                }
                Look::Line(color) => self.line((x, middle), (x + 20.0, middle), color, 2.5, None),
                Look::Dashes(color) => self.line((x, middle), (x + 20.0, middle), color, 2.0, Some("5 3")),
                Look::Dot(color) => self.dot((x + 9.0, middle), 3.5, color),
            }
            self.note((x + 26.0, y + 12.5), name, Anchor::Start);
            x += room;
        }
        if keys.is_empty() { y } else { y + 28.0 }
    }

    /// A text with its baseline at `at`.
    pub fn write(&mut self, at: (f64, f64), words: &str, px: f64, color: Color, anchor: Anchor, bold: bool) {
        self.body.append(self.text(at, words, px, color, anchor, bold));
    }

    /// The same, rotated upwards.
    pub fn write_up(&mut self, at: (f64, f64), words: &str, px: f64, anchor: Anchor) {
        let text = self.text(at, words, px, self.theme.muted, anchor, false);
        self.body.append(text.set("transform", format!("rotate(-90 {} {})", short(at.0), short(at.1))));
    }

    fn text(&self, at: (f64, f64), words: &str, px: f64, color: Color, anchor: Anchor, bold: bool) -> Text {
        let anchor = match anchor {
            Anchor::Start => "start",
            Anchor::Middle => "middle",
            Anchor::End => "end",
        };
        let mut text = Text::new(on_a_line(words))
            .set("x", short(at.0))
            .set("y", short(at.1))
            .set("font-size", px)
            .set("fill", color.hex())
            .set("text-anchor", anchor);
        if bold {
            text = text.set("font-weight", "bold");
        }
        text
    }

    /// A muted text of the usual small size.
    pub fn note(&mut self, at: (f64, f64), words: &str, anchor: Anchor) {
        self.write(at, words, NOTE_PX, self.theme.muted, anchor, false);
    }

    /// A box, with an outline if a color is given.
    pub fn frame(&mut self, frame: Frame, fill: Fill, outline: Option<Color>) {
        let rect = self.rectangle(frame, fill, outline);
        self.body.append(rect);
    }

    /// A box that represents data: with a tooltip `words`, and `data` as names and values.
    pub fn datum(
        &mut self,
        frame: Frame,
        fill: Fill,
        outline: Option<Color>,
        tooltip: &str,
        data: &[(&str, String)],
    ) {
        let mut rect = self.rectangle(frame, fill, outline);
        for (name, value) in data {
            rect = rect.set(format!("data-{name}"), value.as_str());
        }
        self.body.append(rect.add(Title::new(on_a_line(tooltip))));
    }

    fn rectangle(&mut self, frame: Frame, fill: Fill, outline: Option<Color>) -> Rectangle {
        let fill = self.paint(fill);
        let rect = Rectangle::new()
            .set("x", short(frame.x))
            .set("y", short(frame.y))
            .set("width", short(frame.w.max(0.0)))
            .set("height", short(frame.h.max(0.0)))
            .set("fill", fill);
        match outline {
            Some(color) => rect.set("stroke", color.hex()).set("stroke-width", 1),
            None => rect,
        }
    }

    fn paint(&mut self, fill: Fill) -> Value {
        let (kind, color, strokes) = match fill {
            Fill::Plain(color) => return color.hex().into(),
            Fill::None => return "none".into(),
            Fill::Hatch(color) => ("hatch", color, "M-2,2 l4,-4 M0,8 l8,-8 M6,10 l4,-4"),
            Fill::Cross(color) => {
                ("cross", color, "M-2,2 l4,-4 M0,8 l8,-8 M6,10 l4,-4 M-2,6 l4,4 M0,0 l8,8 M6,-2 l4,4")
            }
        };
        let id = format!("{}-{kind}-{}", self.id, &color.hex()[1..]);
        if !self.patterns.iter().any(|(known, _)| *known == id) {
            let path = Path::new()
                .set("d", strokes)
                .set("stroke", color.hex())
                .set("stroke-width", 1)
                .set("fill", "none");
            let pattern = Pattern::new()
                .set("id", id.as_str())
                .set("width", 8)
                .set("height", 8)
                .set("patternUnits", "userSpaceOnUse")
                .add(path);
            self.patterns.push((id.clone(), pattern));
        }
        format!("url(#{id})").into()
    }

    /// A line; `dashes` in SVG syntax, e.g. `5 3`.
    pub fn line(&mut self, from: (f64, f64), to: (f64, f64), color: Color, width: f64, dashes: Option<&str>) {
        let mut line = Line::new()
            .set("x1", short(from.0))
            .set("y1", short(from.1))
            .set("x2", short(to.0))
            .set("y2", short(to.1))
            .set("stroke", color.hex())
            .set("stroke-width", width);
        if let Some(dashes) = dashes {
            line = line.set("stroke-dasharray", dashes);
        }
        self.body.append(line);
    }

    /// A closed area.
    pub fn area(&mut self, points: &[(f64, f64)], color: Color) {
        let place = |(i, (x, y)): (usize, &(f64, f64))| {
            format!("{}{},{}", if i == 0 { "M" } else { "L" }, short(*x), short(*y))
        };
        let d = points.iter().enumerate().map(place).collect::<String>() + "Z";
        self.body.append(Path::new().set("d", d).set("fill", color.hex()));
    }

    /// A dot.
    pub fn dot(&mut self, at: (f64, f64), radius: f64, color: Color) {
        let dot =
            svg::node::element::Circle::new().set("cx", short(at.0)).set("cy", short(at.1)).set("r", radius);
        self.body.append(dot.set("fill", color.hex()));
    }

    /// An arrow from one position to another.
    pub fn arrow(&mut self, from: (f64, f64), to: (f64, f64), color: Color, width: f64) {
        self.line(from, to, color, width, None);
        let (dx, dy) = (to.0 - from.0, to.1 - from.1);
        let length = dx.hypot(dy).max(1e-9);
        let (ux, uy) = (dx / length, dy / length);
        let corner = |side: f64| (to.0 - 7.0 * ux - side * 3.5 * uy, to.1 - 7.0 * uy + side * 3.5 * ux);
        self.area(&[to, corner(1.0), corner(-1.0)], color);
    }

    /// A nested SVG document (a chart), with its upper left corner at `at`.
    pub fn paste(&mut self, at: (f64, f64), document: &str) {
        let group = Group::new().set("transform", format!("translate({} {})", short(at.0), short(at.1)));
        self.body.append(group.add(Blob::new(document)));
    }

    /// The document, `height` px high.
    pub fn finish(self, height: f64) -> String {
        let height = height.ceil();
        let mut definitions = Definitions::new();
        for (_, pattern) in self.patterns {
            definitions.append(pattern);
        }
        let page =
            Rectangle::new().set("width", WIDTH).set("height", height).set("fill", self.theme.page.hex());
        let document = Document::new()
            .set("viewBox", (0, 0, WIDTH as i64, height as i64))
            .set("width", WIDTH)
            .set("height", height)
            .set("role", "img")
            .set("font-family", text_width::FAMILY)
            .add(Title::new(on_a_line(&self.title)))
            .add(definitions)
            .add(page)
            .add(self.body);
        document.to_string() + "\n"
    }
}

/// A coordinate with at most two decimals.
fn short(x: f64) -> f64 {
    (x * 100.0).round() / 100.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_from_outside_do_not_break_the_document() {
        let nasty = "a<b> & \"c\" 'd'";
        let mut sheet = Sheet::new(&Theme::DARK, "x", nasty);
        let cross = Fill::Cross(sheet.theme.wrong);
        sheet.datum(Frame::new(0.0, 0.0, 5.0, -1.0), cross, None, nasty, &[("name", nasty.into())]);
        sheet.frame(Frame::new(0.0, 0.0, 5.0, 5.0), cross, None);
        let text = sheet.finish(99.2);
        let document = roxmltree::Document::parse(&text).unwrap_or_else(|e| panic!("{e}\n{text}"));
        let datum = document.descendants().find(|n| n.has_attribute("data-name")).unwrap();
        assert_eq!(datum.attribute("data-name"), Some(nasty));
        assert_eq!(datum.attribute("height"), Some("0"), "no box is less than nothing");
        assert_eq!(datum.first_element_child().unwrap().text(), Some(nasty));
        assert_eq!(document.root_element().attribute("height"), Some("100"));
        assert_eq!(
            document.descendants().filter(|n| n.has_tag_name("pattern")).count(),
            1,
            "one pattern, used twice"
        );
    }

    #[test]
    fn a_long_legend_goes_on_in_another_row() {
        let mut sheet = Sheet::new(&Theme::LIGHT, "x", "t");
        let keys: Vec<Key> =
            (0..20).map(|i| Key::color(sheet.theme.ink, format!("a name of some length {i}"))).collect();
        assert!(sheet.legend(60.0, &keys[..2]) < sheet.legend(60.0, &keys));
        assert_eq!(sheet.legend(60.0, &[]), 60.0);
    }
}
