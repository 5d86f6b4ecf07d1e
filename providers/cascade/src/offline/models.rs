//! Where the model files are, and whether they are what they should be.

use std::{
    env, fmt, fs,
    io::{self, Read},
    path::{Path, PathBuf},
};

use sha2::{Digest, Sha256};

use super::OfflineError;

/// Names the directory of the model files when no option does.
pub const MODELS_VARIABLE: &str = "ANTIPHON_MODELS";

/// No model file is as large: what is beyond is not read, and so has another sum.
const MAX_FILE_BYTES: u64 = 64 << 20;

/// A directory that holds the model files. Every file is compared with the SHA-256 sum that this
/// version of the crate was tested with, while it is read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelDirectory {
    path: PathBuf,
}

impl ModelDirectory {
    /// Finds the model files. An `explicit` directory or the one in `ANTIPHON_MODELS` is taken at
    /// its word; without either, these are tried in order: `models`, `../models` and
    /// `../share/antiphon/models` beside the executable, then `models` in the source tree.
    ///
    /// # Errors
    ///
    /// [`OfflineError::ModelsNotFound`] when no such directory holds the files, with the list of
    /// those looked at; [`OfflineError::ModelMissing`] when a directory that was named lacks one.
    pub fn locate(explicit: Option<&Path>) -> Result<Self, OfflineError> {
        let named = explicit
            .map(Path::to_path_buf)
            .or_else(|| env::var_os(MODELS_VARIABLE).filter(|v| !v.is_empty()).map(PathBuf::from));
        match named {
            Some(path) => Self::named(path),
            None => Self::search(usual_places(env::current_exe().ok().as_deref())),
        }
    }

    fn named(path: PathBuf) -> Result<Self, OfflineError> {
        if !path.is_dir() {
            return Err(OfflineError::ModelsNotFound { looked_in: vec![path] });
        }
        match ModelFile::ALL.into_iter().map(|file| path.join(file.name())).find(|f| !f.is_file()) {
            Some(path) => Err(OfflineError::ModelMissing { path }),
            None => Ok(Self { path }),
        }
    }

    fn search(places: Vec<PathBuf>) -> Result<Self, OfflineError> {
        let holds_all =
            |place: &PathBuf| ModelFile::ALL.into_iter().all(|f| place.join(f.name()).is_file());
        match places.iter().find(|place| holds_all(place)) {
            Some(path) => Ok(Self { path: path.clone() }),
            None => Err(OfflineError::ModelsNotFound { looked_in: places }),
        }
    }

    /// The directory.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Reads and checks every file, for a diagnosis; loading does the same for what it loads.
    ///
    /// # Errors
    ///
    /// The first file that is missing, unreadable or not the expected one.
    pub fn verify(&self) -> Result<(), OfflineError> {
        ModelFile::ALL.into_iter().try_for_each(|file| self.read(file).map(drop))
    }

    pub(super) fn read(&self, file: ModelFile) -> Result<Vec<u8>, OfflineError> {
        let path = self.path.join(file.name());
        let mut bytes = Vec::new();
        let read = fs::File::open(&path)
            .and_then(|file| file.take(MAX_FILE_BYTES).read_to_end(&mut bytes));
        match read {
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Err(OfflineError::ModelMissing { path });
            }
            Err(error) => {
                return Err(OfflineError::ModelUnreadable { path, reason: error.to_string() });
            }
        }
        let sum = hex(&Sha256::digest(&bytes));
        if sum != file.sha256() {
            return Err(OfflineError::ModelCorrupt {
                path,
                expected: file.sha256().to_owned(),
                got: sum,
            });
        }
        Ok(bytes)
    }
}

/// The files of the offline preset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ModelFile {
    MoonshineEncoder,
    MoonshineDecoder,
    MoonshineTokenizer,
    HibariVoice,
    HibariPhonemes,
    HibariUnknownWords,
    HibariUnknownWordsAlphabet,
    Silero,
}

impl ModelFile {
    const ALL: [Self; 8] = [
        Self::MoonshineEncoder,
        Self::MoonshineDecoder,
        Self::MoonshineTokenizer,
        Self::HibariVoice,
        Self::HibariPhonemes,
        Self::HibariUnknownWords,
        Self::HibariUnknownWordsAlphabet,
        Self::Silero,
    ];

    pub(super) const fn name(self) -> &'static str {
        self.entry().0
    }

    const fn sha256(self) -> &'static str {
        self.entry().1
    }

    /// Name and sum, as in `models/SHA256SUMS`.
    const fn entry(self) -> (&'static str, &'static str) {
        match self {
            Self::MoonshineEncoder => (
                "moonshine-tiny-en.encoder.onnx.zst",
                "e4596c2fe134264cef7eb482c23f8395d936180167fb92b2ebe43eb92f1a098f",
            ),
            Self::MoonshineDecoder => (
                "moonshine-tiny-en.decoder.onnx.zst",
                "9bf28e3eed23520616f218cd2ba08446c3f97946cef80e8fa050ca2bcb5935f4",
            ),
            Self::MoonshineTokenizer => (
                "moonshine-tiny-en.tokenizer.bin",
                "6884b35fd6377d4c4d32336a0bc152f36b64d1e45b6503683cdc238250a8472d",
            ),
            Self::HibariVoice => {
                ("hibari.onnx", "5f70741d4e900f4e85d0037498736cc1b3e1b9a63a13546a5da1e63abf4fccd8")
            }
            Self::HibariPhonemes => (
                "hibari.vocab.json",
                "70abefbe8a1c8865e43e0a43bbdc25b91a33e4aa053479d443ccf23e20a59e5d",
            ),
            Self::HibariUnknownWords => (
                "hibari.oov.onnx",
                "d3cfd8122c5f172a98c8de38268bf1213ee09f2c2ae4df6e055fc6532590fe76",
            ),
            Self::HibariUnknownWordsAlphabet => (
                "hibari.oov.json",
                "b462e6e5dbdf0e7346c732385d0dd844f612f1770871441c56932bff4ca75d8c",
            ),
            Self::Silero => (
                "silero_vad_16k_op15.onnx",
                "7ed98ddbad84ccac4cd0aeb3099049280713df825c610a8ed34543318f1b2c49",
            ),
        }
    }
}

impl fmt::Display for ModelFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

fn usual_places(executable: Option<&Path>) -> Vec<PathBuf> {
    let mut places = Vec::new();
    if let Some(beside) = executable.and_then(Path::parent) {
        places.push(beside.join("models"));
        places.push(beside.join("../models"));
        places.push(beside.join("../share/antiphon/models"));
    }
    // For `cargo run`: the executable then lies somewhere in a target directory.
    places.push(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models"));
    places
}

fn hex(bytes: &[u8]) -> String {
    use fmt::Write;
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
        // Writing to a string cannot fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source_tree() -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models")
    }

    #[test]
    fn the_table_says_what_the_list_beside_the_models_says() {
        let list = fs::read_to_string(source_tree().join("SHA256SUMS")).unwrap();
        for file in ModelFile::ALL {
            let line = format!("{}  {}", file.sha256(), file.name());
            assert!(list.lines().any(|l| l == line), "{line}");
        }
    }

    #[test]
    fn the_models_of_the_source_tree_are_found_and_whole() {
        ModelDirectory::locate(Some(&source_tree())).unwrap().verify().unwrap();
    }

    #[test]
    fn a_directory_that_is_not_there_is_named() {
        let error = ModelDirectory::locate(Some(Path::new("/nowhere/models"))).unwrap_err();
        assert!(error.to_string().contains("/nowhere/models"), "{error}");
    }

    #[test]
    fn a_search_in_vain_lists_where_it_looked() {
        let places = vec![PathBuf::from("/nowhere/a"), PathBuf::from("/nowhere/b")];
        let error = ModelDirectory::search(places).unwrap_err().to_string();
        assert!(error.contains("/nowhere/a") && error.contains("/nowhere/b"), "{error}");
    }

    #[test]
    fn the_search_goes_from_the_executable_to_the_source_tree() {
        let places = usual_places(Some(Path::new("/opt/antiphon/bin/antiphon")));
        assert_eq!(places[0], Path::new("/opt/antiphon/bin/models"));
        assert_eq!(places[2], Path::new("/opt/antiphon/bin/../share/antiphon/models"));
        assert_eq!(places.len(), 4);
    }

    #[test]
    fn a_missing_and_a_corrupt_file_are_told_apart_and_named() {
        let directory = tempfile::tempdir().unwrap();
        for file in ModelFile::ALL {
            fs::write(directory.path().join(file.name()), b"not a model").unwrap();
        }
        let models = ModelDirectory::locate(Some(directory.path())).unwrap();
        match models.read(ModelFile::Silero).unwrap_err() {
            OfflineError::ModelCorrupt { path, expected, got } => {
                assert!(path.ends_with("silero_vad_16k_op15.onnx"));
                assert_eq!(expected, ModelFile::Silero.sha256());
                assert_eq!(got, hex(&Sha256::digest(b"not a model")));
            }
            other => panic!("{other}"),
        }
        fs::remove_file(directory.path().join("hibari.onnx")).unwrap();
        assert!(matches!(
            ModelDirectory::locate(Some(directory.path())),
            Err(OfflineError::ModelMissing { path }) if path.ends_with("hibari.onnx")
        ));
    }
}
