//! Paths in documents: a path is bytes, and the strings of JSON are UTF-8. serde refuses a path that is not,
//! so a `PathBuf` that is serialized names one of these with `#[serde(with = "...")]`.
//!
//! Must not know: which documents, and what lies at the paths.

/// A path that is read again, by another rank or another process: a string where it is UTF-8, else its bytes.
pub mod exact {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};
    use std::ffi::OsString;
    use std::os::unix::ffi::{OsStrExt, OsStringExt};
    use std::path::{Path, PathBuf};

    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Written {
        Text(String),
        Bytes(Vec<u8>),
    }

    /// # Errors
    /// Those of the document.
    pub fn serialize<S: Serializer>(path: &Path, serializer: S) -> Result<S::Ok, S::Error> {
        match path.to_str() {
            Some(text) => text.serialize(serializer),
            None => path.as_os_str().as_bytes().serialize(serializer),
        }
    }

    /// # Errors
    /// Neither a string nor bytes.
    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<PathBuf, D::Error> {
        Ok(match Written::deserialize(deserializer)? {
            Written::Text(text) => text.into(),
            Written::Bytes(bytes) => OsString::from_vec(bytes).into(),
        })
    }
}

/// A path that is shown: what is not UTF-8 in it becomes U+FFFD.
pub mod lossy {
    use serde::Serializer;
    use std::path::Path;

    /// # Errors
    /// Those of the document.
    pub fn serialize<S: Serializer>(path: &Path, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&path.display())
    }
}

#[cfg(test)]
mod tests {
    use serde::{Deserialize, Serialize};
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;
    use std::path::PathBuf;

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    struct Exact {
        #[serde(with = "super::exact")]
        path: PathBuf,
    }

    #[derive(Serialize)]
    struct Lossy {
        #[serde(with = "super::lossy")]
        path: PathBuf,
    }

    #[test]
    fn a_path_that_is_not_utf_8_comes_back_from_json_byte_for_byte_and_is_shown_lossily() {
        for (bytes, json, shown) in [
            (&b"a/b"[..], r#"{"path":"a/b"}"#, r#"{"path":"a/b"}"#),
            (b"", r#"{"path":""}"#, r#"{"path":""}"#),
            ("語".as_bytes(), r#"{"path":"語"}"#, r#"{"path":"語"}"#),
            (b"n\xff", r#"{"path":[110,255]}"#, "{\"path\":\"n\u{fffd}\"}"),
        ] {
            let path = PathBuf::from(OsStr::from_bytes(bytes));
            let exact = Exact { path: path.clone() };
            assert_eq!(serde_json::to_string(&exact).unwrap(), json);
            assert_eq!(serde_json::from_str::<Exact>(json).unwrap(), exact);
            assert_eq!(serde_json::to_string(&Lossy { path }).unwrap(), shown);
        }
        assert!(serde_json::from_str::<Exact>(r#"{"path":[256]}"#).is_err());
    }
}
