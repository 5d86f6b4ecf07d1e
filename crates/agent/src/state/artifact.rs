//! What a conversation produces beside words.

use std::sync::Arc;

use antiphon_types::JsonObject;

use crate::{
    message::{Part, weight},
    wire_object::wire_object,
};

/// A named collection of parts, such as a file, a picture or a diagram.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Artifact {
    /// Its name. An artifact takes the place of the one of the same name; those without a name are
    /// all kept.
    pub name: Option<Arc<str>>,
    /// The content.
    pub parts: Vec<Part>,
    /// What the host notes with it.
    pub metadata: Option<JsonObject>,
    /// Members that this version does not know.
    pub extra: JsonObject,
}

wire_object!(Artifact {
    name: optional "name",
    parts: required "parts",
    metadata: optional "metadata",
});

impl Artifact {
    /// A named artifact.
    pub fn new(name: impl Into<Arc<str>>, parts: Vec<Part>) -> Self {
        Self { name: Some(name.into()), parts, ..Self::default() }
    }

    /// About how many bytes it is in JSON.
    pub(crate) fn weight(&self) -> usize {
        let name = self.name.as_ref().map_or(0, |name| name.len());
        name + weight::parts(&self.parts)
            + weight::noted(&self.metadata)
            + weight::object(&self.extra)
    }

    /// Its name, where it has one that is not empty.
    fn given_name(&self) -> Option<&str> {
        self.name.as_deref().filter(|name| !name.is_empty())
    }
}

/// Adds `artifact`, in the place of the one of its name where there is one.
pub fn add_artifact(artifacts: &mut Vec<Arc<Artifact>>, artifact: Arc<Artifact>) {
    let place = artifact
        .given_name()
        .and_then(|name| artifacts.iter_mut().find(|existing| existing.given_name() == Some(name)));
    match place {
        Some(place) => *place = artifact,
        None => artifacts.push(artifact),
    }
}
