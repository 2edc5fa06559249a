//! Figures in an HTML page: both themes are included, and the reader's system selects one, without a script.
//!
//! Must not know: the rest of the page.

use super::Figure;
use crate::foreign::shown;

/// The part of a page's style for its figures.
const STYLE: &str = "\
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

/// Nothing may be loaded, whatever a page contains (the icon is empty, so that a browser does not request it
/// from a server).
const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'; img-src data:";

/// The head of every page: security policy, title, and styles.
pub fn head(title: &str, style: &str) -> String {
    format!(
        "<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\"><meta \
         http-equiv=\"Content-Security-Policy\" content=\"{POLICY}\"><meta name=\"viewport\" \
         content=\"width=device-width\"><meta name=\"color-scheme\" content=\"light dark\"><link \
         rel=\"icon\" href=\"data:,\"><title>{}</title><style>{style}{STYLE}</style></head>",
        escape(title)
    )
}

/// External text, escaped for an element or a quoted attribute.
pub fn escape(text: &str) -> String {
    shown(text).replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_controls_a_terminal_and_markup_alike_are_text_in_a_page() {
        assert_eq!(escape("<b>\x1b[31m\0&\"\n"), "&lt;b&gt;\\u001b[31m\\u0000&amp;&quot;\n");
        let head = head("</title>\x1b", "p{}");
        assert!(
            head.contains("<title>&lt;/title&gt;\\u001b</title>") && head.contains("default-src 'none'"),
            "{head}"
        );
    }

    #[cfg(feature = "figures")]
    #[test]
    fn both_themes_stand_in_a_page_and_words_from_outside_are_words() {
        let figure = Figure::new("storage", "t", "a < b & \"c\"", |_| 60.0);
        let element = element(&figure);
        assert!(element.contains("<figcaption>a &lt; b &amp; &quot;c&quot;</figcaption>"), "{element}");
        assert!(element.contains(&figure.light) && element.contains(&figure.dark), "{element}");
    }
}
