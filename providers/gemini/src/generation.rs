//! What the generations of models can do.

/// One generation of Live models. What is not in this table is the same for all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Generation {
    /// What its models have in their names.
    pub name: &'static str,
    /// Functions may be declared as ones that the model does not wait for.
    pub non_blocking_tools: bool,
    /// The model does not wait for functions of which nothing is declared.
    pub non_blocking_by_default: bool,
    /// Instructions and tools may change within a session (`contextUpdate`).
    pub context_update: bool,
    /// How what was said before is given.
    pub initial_history: InitialHistory,
    /// How thinking is set.
    pub thinking: ThinkingBy,
    /// Whether the model may keep silent where nobody means it.
    pub proactive_audio: Proactivity,
    /// It can answer to the mood of the voice.
    pub affective_dialog: bool,
    /// Where words that ask for an answer go.
    pub typed_text: TextChannel,
    /// The turn ends with a call (`turnComplete`), and what comes after the output is another one.
    /// Others say nothing until they have the output.
    pub turn_ends_at_call: bool,
    /// It says when the user begins to speak, and stops (`voiceActivity`).
    pub tells_speech: bool,
}

/// How what was said before is given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum InitialHistory {
    /// As contents that call for no answer yet.
    Contents,
    /// As contents too, but the set-up has to say that they are history
    /// (`historyConfig.initialHistoryInClientContent`), and audio waits for their end.
    Announced,
}

/// How thinking is set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ThinkingBy {
    /// As a number of tokens.
    Budget,
    /// As a level.
    Level,
    /// It is the model's own business.
    Nothing,
}

/// Whether the model may keep silent where nobody means it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Proactivity {
    /// It may be switched on, in the version `v1alpha` of the API.
    Optional,
    /// It cannot.
    Never,
    /// It always may. Switching it off is refused.
    Always,
}

/// Where words that ask for an answer go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum TextChannel {
    /// `clientContent`: in order with the rest of the conversation.
    ClientContent,
    /// `realtimeInput.text`: like speech.
    RealtimeInput,
}

impl Generation {
    /// The table (sections 7 and 8 of the vendor's documentation as of autumn 2026). The newest comes
    /// last.
    pub const ALL: [Self; 3] = [
        Self {
            name: "2.5",
            non_blocking_tools: true,
            non_blocking_by_default: false,
            context_update: false,
            initial_history: InitialHistory::Contents,
            thinking: ThinkingBy::Budget,
            proactive_audio: Proactivity::Optional,
            affective_dialog: true,
            typed_text: TextChannel::ClientContent,
            turn_ends_at_call: true,
            tells_speech: false,
        },
        Self {
            name: "3.1",
            non_blocking_tools: false,
            non_blocking_by_default: false,
            context_update: false,
            initial_history: InitialHistory::Announced,
            thinking: ThinkingBy::Level,
            proactive_audio: Proactivity::Never,
            affective_dialog: false,
            typed_text: TextChannel::RealtimeInput,
            turn_ends_at_call: false,
            tells_speech: false,
        },
        Self {
            name: "3.8",
            non_blocking_tools: true,
            non_blocking_by_default: true,
            context_update: true,
            initial_history: InitialHistory::Announced,
            thinking: ThinkingBy::Nothing,
            proactive_audio: Proactivity::Always,
            affective_dialog: false,
            typed_text: TextChannel::ClientContent,
            turn_ends_at_call: false,
            tells_speech: true,
        },
    ];

    /// The generation of a model, by its name; of one that is not known, the newest.
    pub fn of(model: &str) -> Self {
        let [oldest, middle, newest] = Self::ALL;
        if model.contains("-2.0") {
            return oldest;
        }
        let known = [oldest, middle].into_iter().find(|known| model.contains(known.name));
        known.unwrap_or(newest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_tell_the_generation() {
        for (model, name) in [
            ("gemini-2.5-flash-native-audio-preview-12-2025", "2.5"),
            ("models/gemini-live-2.5-flash-preview", "2.5"),
            ("gemini-2.0-flash-live-001", "2.5"),
            ("gemini-3.1-flash-live-preview", "3.1"),
            ("projects/p/locations/l/publishers/google/models/gemini-3.8-live", "3.8"),
            ("gemini-4.2-live", "3.8"),
        ] {
            assert_eq!(Generation::of(model).name, name, "{model}");
        }
    }
}
