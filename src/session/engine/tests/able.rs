//! What the provider of a random life can do, and what the session is made of, by the bits of a byte.

use std::time::Duration;

use antiphon_live::Capabilities;
use antiphon_types::AudioFormat;

/// Speech is judged.
pub(super) const JUDGED: u8 = 64;
/// The session is bounded in time.
pub(super) const BOUNDED: u8 = 128;

/// The capabilities of a provider.
pub(super) fn capabilities(able: u8) -> Capabilities {
    let format = AudioFormat::pcm16(24_000);
    let mut can = Capabilities::audio_only(AudioFormat::pcm16(16_000), format);
    can.text_input = true;
    // As far as the next connection goes on from this one, it does so in two ways.
    can.resumption = able & 3 > 1;
    can.resumes_calls = able & 4 > 0;
    can.history = able & 8 > 0;
    can.update_instructions = able & 16 > 0;
    can.update_tools = able & 16 > 0;
    can.connection_limit = (able & 32 > 0).then_some(Duration::from_secs(90));
    can.tools = true;
    can.cancel_reply = true;
    can.truncate = true;
    can.say = able & 1 > 0;
    can.create_reply = able & 2 > 0;
    can.interrupts = able & 4 > 0;
    can.tools_after_reply = able & 8 > 0;
    can.replies_after_tools = able & 16 > 0;
    can.input_transcripts = able & 32 > 0;
    can.session_answers = able & JUDGED > 0;
    can.non_blocking_tools = able & 3 == 3;
    can.interrupts &= able & JUDGED == 0;
    can.forget_input = able & JUDGED > 0;
    can.answers_words = able & 33 == 33;
    can.manual_activity = true;
    can
}
