//! Where the model files are, and whether they are what they should be.

use std::{
    env, fmt, fs,
    io::{self, Read},
    path::{Path, PathBuf},
};

use super::OfflineError;

/// Names the directory of the model files when no option does.
pub const MODELS_VARIABLE: &str = "ANTIPHON_MODELS";

/// No model file is as large: what is beyond is not read, and so has another sum.
const MAX_FILE_BYTES: u64 = 64 << 20;

/// A directory that holds the model files. Every file is compared with the BLAKE3 sum that this
/// version of the crate was tested with, while it is read. (SHA-256 took a fifth of the time to
/// start.)
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
        let sum = blake3::hash(&bytes).to_hex();
        if sum.as_str() != file.blake3() {
            return Err(OfflineError::ModelCorrupt {
                path,
                expected: file.blake3().to_owned(),
                got: sum.to_string(),
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

    const fn blake3(self) -> &'static str {
        self.entry().1
    }

    /// Name and sum, as in `models/B3SUMS`.
    const fn entry(self) -> (&'static str, &'static str) {
        match self {
            Self::MoonshineEncoder => (
                "moonshine-tiny-en.encoder.onnx.zst",
                "631e6e47fea93558496ca75f1ae957116afa8a2b76ed3f14dd4f69647bfc692c",
            ),
            Self::MoonshineDecoder => (
                "moonshine-tiny-en.decoder.onnx.zst",
                "b5375583be60753ac08e5863ffd2ec3e212ab13e0db28d7502f72bec470f89bb",
            ),
            Self::MoonshineTokenizer => (
                "moonshine-tiny-en.tokenizer.bin",
                "92d579aac790abe7b1c793cf78c9d8d1a779b860b445000d2e3cfe4d70dce2fb",
            ),
            Self::HibariVoice => {
                ("hibari.onnx", "7221c5f4f4da091523f09c17db69d90e9c06390fc094c85fd598904c5834fbe1")
            }
            Self::HibariPhonemes => (
                "hibari.vocab.json",
                "c41bf9fd01aa7eb9b35a8425dc21a45646c409f87689c6b0213adaa179a33fe1",
            ),
            Self::HibariUnknownWords => (
                "hibari.oov.onnx",
                "fe03976140f36e118b495f3b64efb48b080a76fc6810b90b6f023b55043ecf83",
            ),
            Self::HibariUnknownWordsAlphabet => (
                "hibari.oov.json",
                "a925aedbddb9eb923e5a3c04d4fab2ba5b8ab01bc711bad625cb50a66b7a695d",
            ),
            Self::Silero => (
                "silero_vad_16k_op15.onnx",
                "4fdd6a7d69bd9b13986f2dbde58c9d7c025c209d2a36a5db6ee553291688befc",
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

#[cfg(test)]
mod tests {
    use super::*;

    fn source_tree() -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models")
    }

    #[test]
    fn the_table_says_what_the_list_beside_the_models_says() {
        let list = fs::read_to_string(source_tree().join("B3SUMS")).unwrap();
        for file in ModelFile::ALL {
            let line = format!("{}  {}", file.blake3(), file.name());
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
                assert_eq!(expected, ModelFile::Silero.blake3());
                assert_eq!(got, blake3::hash(b"not a model").to_hex().as_str());
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
