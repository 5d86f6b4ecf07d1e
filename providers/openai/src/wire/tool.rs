//! Tools as the service is told of them.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::open_enum::open_enum;

/// A tool that the model may call.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
#[non_exhaustive]
pub enum Tool {
    /// A tool that the client runs.
    Function(FunctionTool),
    /// The tools of an MCP server, run by the service.
    Mcp(Box<McpServer>),
    /// A tool of another kind, such as a vendor's own.
    #[serde(untagged)]
    Other(Value),
}

/// A tool that the client runs.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct FunctionTool {
    /// Its name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// When to use it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// JSON Schema of the arguments.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parameters: Option<Value>,
}

/// An MCP server, reached by the service itself by URL, connector or tunnel.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct McpServer {
    /// Its name in the session.
    pub server_label: String,
    /// Where it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub server_url: Option<String>,
    /// A connector of the service instead of a URL.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub connector_id: Option<String>,
    /// A tunnel of the service instead of a URL.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tunnel_id: Option<String>,
    /// An OAuth token for the server.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub authorization: Option<String>,
    /// Headers for the server.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub headers: Option<BTreeMap<String, String>>,
    /// Which of its tools.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allowed_tools: Option<AllowedTools>,
    /// Which of its tools need an approval.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub require_approval: Option<RequireApproval>,
    /// What the server is for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub server_description: Option<String>,
    /// Who may call: `direct`, `programmatic`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allowed_callers: Option<Vec<String>>,
    /// Whether the tools are listed only when they are wanted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub defer_loading: Option<bool>,
}

/// Which tools of an MCP server.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
#[non_exhaustive]
pub enum AllowedTools {
    /// These.
    Names(Vec<String>),
    /// Those that pass.
    Filter(ApprovalFilter),
}

/// A choice among the tools of an MCP server.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ApprovalFilter {
    /// Only those that change nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub read_only: Option<bool>,
    /// Only these.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tool_names: Option<Vec<String>>,
}

/// Which tools of an MCP server need an approval.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
#[non_exhaustive]
pub enum RequireApproval {
    /// `always` or `never`.
    Word(String),
    /// By tool.
    Filters {
        /// Those that need one.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        always: Option<ApprovalFilter>,
        /// Those that need none.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        never: Option<ApprovalFilter>,
    },
}

/// Whether and which tool the model must call.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
#[non_exhaustive]
pub enum ToolChoice {
    /// In general.
    Mode(ToolMode),
    /// A certain tool: `{"type":"function","name":…}` or
    /// `{"type":"mcp","server_label":…,"name":…}`.
    Certain(CertainTool),
}

open_enum! {
    /// Whether the model must call tools.
    ToolMode {
        /// As it likes.
        Auto = "auto",
        /// No tool.
        None = "none",
        /// At least one.
        Required = "required",
    }
}

/// A certain tool.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
#[non_exhaustive]
pub enum CertainTool {
    /// A tool of the client.
    Function {
        /// Its name.
        name: String,
    },
    /// A tool of an MCP server.
    Mcp {
        /// The server.
        server_label: String,
        /// The tool; none: any of the server's.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        name: Option<String>,
    },
}

impl ToolChoice {
    /// As the model likes.
    pub const AUTO: Self = Self::Mode(ToolMode::Auto);
    /// No tool.
    pub const NONE: Self = Self::Mode(ToolMode::None);

    /// Whether every reply under this choice must call a tool.
    pub const fn forces_a_call(&self) -> bool {
        matches!(self, Self::Mode(ToolMode::Required) | Self::Certain(_))
    }
}
