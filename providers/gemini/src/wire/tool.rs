//! Tools: declared, called, answered.

use serde_json::{Map, Value};

use super::{Blob, messages, open_enum::open_enums};

messages! {
    /// A group of tools, or one that the service runs itself.
    Tool {
        /// Functions that the client runs.
        function_declarations: Vec<FunctionDeclaration>,
        /// Google Search.
        google_search: Value,
        /// Code that the service runs.
        code_execution: Value,
        /// Pages that the service reads.
        url_context: Value,
        /// Google Maps.
        google_maps: Value,
        /// Files that the service searches.
        file_search: Value,
        /// A computer.
        computer_use: Value,
        /// Servers that speak MCP.
        mcp_servers: Vec<Value>,
        /// Vertex AI: retrieval.
        retrieval: Value,
        /// Vertex AI: search for companies.
        enterprise_web_search: Value,
        /// Older models: Google Search.
        google_search_retrieval: Value,
        /// Vertex AI: another search.
        parallel_ai_search: Value,
        /// Vertex AI: another search.
        exa_ai_search: Value,
    }

    /// A function that the client runs.
    FunctionDeclaration {
        /// Its name.
        name: String,
        /// When to call it.
        description: String,
        /// The vendor's own kind of schema, with types in capitals.
        parameters: Value,
        /// JSON Schema instead.
        parameters_json_schema: Value,
        /// What it gives, in the vendor's own kind of schema.
        response: Value,
        /// What it gives, in JSON Schema.
        response_json_schema: Value,
        /// Whether the model waits for it.
        behavior: Behavior,
    }

    /// The model calls a function.
    FunctionCall {
        /// Names the call.
        id: String,
        /// The function.
        name: String,
        /// Its arguments: an object. What else a server might send is kept, so that the call can be
        /// answered.
        args: Value,
        /// Arguments that come in pieces.
        partial_args: Vec<PartialArg>,
        /// Whether more pieces come.
        will_continue: bool,
    }

    /// A piece of an argument.
    PartialArg {
        /// Where in the arguments.
        json_path: String,
        /// A truth value.
        bool_value: bool,
        /// A number.
        number_value: f64,
        /// A text, or a piece of one.
        string_value: String,
        /// `NULL_VALUE`.
        null_value: String,
        /// Whether more of this text comes.
        will_continue: bool,
    }

    /// What a function gave.
    FunctionResponse {
        /// The call's id.
        id: String,
        /// The function.
        name: String,
        /// An object, and nothing else: the service hangs up on a bare text.
        response: Map<String, Value>,
        /// When the model speaks of it. Only for functions that it does not wait for.
        scheduling: Scheduling,
        /// More responses to the same call follow.
        will_continue: bool,
        /// Media beside the object.
        parts: Vec<FunctionResponsePart>,
    }

    /// Media of a function's output.
    FunctionResponsePart {
        /// Bytes.
        inline_data: Blob,
        /// A file.
        file_data: Value,
        /// How the media is read.
        media_processing: Value,
        /// How finely an image is looked at.
        media_resolution: Value,
        /// Of a video.
        video_metadata: Value,
        /// Of a document.
        document_metadata: Value,
        /// Of a spreadsheet.
        spreadsheet_metadata: Value,
        /// Of audio.
        audio_metadata: Value,
    }
}

open_enums! {
    /// Whether the model waits for a function.
    Behavior {
        /// Not said.
        Unspecified = "UNSPECIFIED",
        /// It waits.
        Blocking = "BLOCKING",
        /// It goes on.
        NonBlocking = "NON_BLOCKING",
    }

    /// When the model speaks of a function's output.
    Scheduling {
        /// Not said.
        Unspecified = "SCHEDULING_UNSPECIFIED",
        /// Never.
        Silent = "SILENT",
        /// After what it says.
        WhenIdle = "WHEN_IDLE",
        /// At once.
        Interrupt = "INTERRUPT",
    }
}
