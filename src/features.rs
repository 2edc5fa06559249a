//! The optional parts of the program, and the error where one is asked for that a build was made without.
//!
//! Must not know: what a part does.

use crate::error::Error;

/// A part of the program that a build can leave out: a feature of the cargo package.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Feature {
    /// Figures, and pages that show them.
    Figures,
    /// Tokenizers of other programs: `gpt2` and `tokenizer.json` files.
    Text,
    /// The live view of a run.
    Watch,
}

impl Feature {
    /// All of them.
    pub const ALL: [Feature; 3] = [Feature::Figures, Feature::Text, Feature::Watch];

    /// Its name in Cargo.toml.
    pub const fn name(self) -> &'static str {
        match self {
            Feature::Figures => "figures",
            Feature::Text => "text",
            Feature::Watch => "watch",
        }
    }

    /// The error of a build without it, of which `what` was asked.
    pub fn missing(self, what: &str) -> Error {
        let name = self.name();
        Error::Input(format!(
            "{what} requires the feature `{name}`, which this program was built without; build it with \
             `cargo build --release --features {name}`"
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Exit;

    #[test]
    fn features_are_those_of_the_package_and_a_build_has_all_of_them_by_default() {
        let package: toml::Table = include_str!("../Cargo.toml").parse().unwrap();
        let names = Feature::ALL.map(Feature::name);
        let mut declared: Vec<&str> =
            package["features"].as_table().unwrap().keys().map(String::as_str).collect();
        declared.retain(|name| *name != "default");
        declared.sort_unstable();
        assert_eq!(declared, names);
        let by_default: Vec<&str> = package["features"]["default"]
            .as_array()
            .unwrap()
            .iter()
            .filter_map(|name| name.as_str())
            .collect();
        assert_eq!(by_default, names);
    }

    #[test]
    fn what_a_build_has_not_is_refused_by_the_name_of_the_feature() {
        let error = Feature::Watch.missing("a live view");
        assert_eq!(error.exit(), Exit::BadInput);
        assert!(error.to_string().contains("a live view requires the feature `watch`"), "{error}");
    }
}
