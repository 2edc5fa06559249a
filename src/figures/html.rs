//! Figures within an HTML page: both themes stand in it, and the reader's system chooses one, without a script.
//!
//! Must not know: what else is on the page.

use super::Figure;

/// What a page's style needs for its figures.
pub const STYLE: &str = "\
svg{max-width:100%;height:auto;display:block}.wide{overflow-x:auto}\
.dark{display:none}@media (prefers-color-scheme:dark){.dark{display:block}.light{display:none}}\
@media print{.dark{display:none}.light{display:block}figure{break-inside:avoid}}";

/// The element of a figure, with its caption; its name is the id.
pub fn element(figure: &Figure) -> String {
    let Figure { name, caption, light, dark, .. } = figure;
    format!(
        "<figure id=\"{name}\"><div class=\"light wide\">{light}</div><div class=\"dark wide\">{dark}</div>\
         <figcaption>{}</figcaption></figure>\n",
        escape(caption)
    )
}

/// Text from outside, as text or within a quoted attribute.
pub fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_themes_stand_in_a_page_and_words_from_outside_are_words() {
        let figure = Figure::new("storage", "t", "a < b & \"c\"", |_| 60.0);
        let element = element(&figure);
        assert!(element.contains("<figcaption>a &lt; b &amp; &quot;c&quot;</figcaption>"), "{element}");
        assert!(element.contains(&figure.light) && element.contains(&figure.dark), "{element}");
    }
}
