use antiphon_audio::AudioFormat;

use super::*;

fn read(text: &str) -> Result<BridgeConfig, ConfigError> {
    BridgeConfig::from_toml(text, |name| match name {
        "TOKEN" => Some("a secret of some length".into()),
        "SHORT" => Some("short".into()),
        _ => None,
    })
}

const GOOD: &str = r#"
listen = "0.0.0.0:8080"
public_url = "https://calls.example.com"
token_secret_env = "TOKEN"

[limits]
calls = 5
max_length_seconds = 60

[carriers.twilio]
verify = "signature_and_token"
auth_token_env = "TOKEN"

[carriers.telnyx]
verify = "secret"
secret_env = "TOKEN"
api_key_env = "TOKEN"
output = "L16@16000"
byte_order = "little"

[agent]
provider = "offline"
greeting = "Hello."
"#;

#[test]
fn a_whole_configuration_is_read() {
    let config = read(GOOD).unwrap();
    assert_eq!(config.limits.calls, 5);
    assert_eq!(config.limits.max_length, Duration::from_secs(60));
    assert_eq!(config.carriers[&Carrier::Twilio].verify, Verify::SignatureAndToken);
    let telnyx = &config.carriers[&Carrier::Telnyx].options.telnyx;
    assert_eq!(telnyx.output, Some(AudioFormat::pcm16(16_000)));
    assert_eq!(config.agent.greeting.as_deref(), Some("Hello."));
    assert!(!format!("{config:?}").contains("a secret"));
}

#[test]
fn each_mistake_is_told_with_its_line() {
    let line = |change: (&str, &str)| {
        let text = GOOD.replace(change.0, change.1);
        assert_ne!(text, GOOD);
        let error = read(&text).unwrap_err();
        (error.line, error.message)
    };
    assert_eq!(line(("0.0.0.0:8080", "nowhere")).0, 2);
    assert_eq!(line(("https://calls.example.com", "https://calls.example.com/x")).0, 3);
    assert_eq!(line(("token_secret_env = \"TOKEN\"", "token_secret_env = \"SHORT\"")).0, 4);
    assert_eq!(line(("calls = 5", "calls = 0")).0, 7);
    assert_eq!(line(("calls = 5", "cals = 5")).0, 7);
    assert_eq!(line(("carriers.twilio", "carriers.twillio")).0, 10);
    assert_eq!(line(("signature_and_token", "hope")).0, 11);
    let (at, message) = line(("auth_token_env = \"TOKEN\"", "auth_token_env = \"MISSING\""));
    assert_eq!((at, message.contains("MISSING")), (12, true));
    assert_eq!(line(("verify = \"secret\"", "verify = \"signature\"")).0, 15);
    assert_eq!(line(("verify = \"secret\"", "verify = \"none\"")).0, 14);
    assert_eq!(line(("api_key_env = \"TOKEN\"\n", "")).0, 14);
    assert_eq!(line(("L16@16000", "OPUS")).0, 18);
    assert_eq!(line(("[agent]", "[agent")).0, 21);
    assert_eq!(line(("https://calls", "http://calls")).0, 3);
    assert_eq!(line(("byte_order = \"little\"", "control = \"json\"")).0, 19);
    assert_eq!(line(("byte_order = \"little\"", "api_url = \"api.telnyx.com\"")).0, 19);
    assert_eq!(line(("byte_order = \"little\"", "api_url = \"http://a.com\"")).0, 19);
    assert_eq!(line(("[limits]", "[[numbers]]\nto = \"1\"\ntenant = \"a\"\n[limits]")).0, 7);
    let numbers = "[[numbers]]\nto = \"+15550001\"\n";
    assert_eq!(line(("[limits]", &format!("{numbers}[limits]"))).0, 7);
    let agent = format!("{numbers}agent = \"sales\"\n[limits]");
    assert_eq!(line(("[limits]", &agent)).0, 8);
    let dials = "[outbound]\ncarrier = \"telnyx\"\nfrom = \"+15550001\"\nallow = []\n\
                 connection_id = \"1\"\ndetect = \"carrier\"\n[agent]";
    assert_eq!(line(("[agent]", dials)).0, 26);
    assert_eq!(read("listen = \"127.0.0.1:1\"").unwrap_err().line, 1);
}

#[test]
fn without_a_secret_nothing_goes_unchecked() {
    let open = "listen = \"127.0.0.1:1\"\n[carriers.twilio]\nverify = \"none\"\n";
    assert!(read(open).is_ok());
    assert!(read(&open.replace("127.0.0.1", "0.0.0.0")).is_err());
    // Behind a proxy everybody is on this machine.
    let proxied = format!("public_url = \"https://calls.example.com\"\n{open}");
    assert_eq!(read(&proxied).unwrap_err().line, 3);
    assert!(read(&proxied.replace("calls.example.com", "localhost:8080")).is_ok());
    let unsaid = "listen = \"127.0.0.1:1\"\n[carriers.twilio]\n";
    assert_eq!(read(unsaid).unwrap_err().line, 2);
    let token = "listen = \"127.0.0.1:1\"\n[carriers.twilio]\nverify = \"token\"\n";
    assert!(read(token).unwrap_err().message.contains("token_secret_env"));
    let signature = token.replace("token", "signature");
    assert!(read(&signature).is_err());
}

#[test]
fn a_number_has_its_tenant_and_its_agent() {
    let more = "[agents.sales]\ngreeting = \"Sales.\"\n[[numbers]]\nto = \"+15550001\"\n\
                agent = \"sales\"\n[[numbers]]\nto = \"+15550002\"\ntenant = \"acme\"\n";
    let config = read(&format!("{GOOD}{more}")).unwrap();
    assert_eq!(config.agents["sales"].greeting.as_deref(), Some("Sales."));
    let claims = |to| {
        let claims = config.claims_of(to);
        (claims.tenant, claims.agent)
    };
    assert_eq!(claims("+15550001"), (None, Some("sales".into())));
    assert_eq!(claims("+15550002"), (Some("acme".into()), None));
    assert_eq!(claims("+15550003"), (None, None));
}

#[test]
fn what_is_found_out_later_is_told_with_its_line_too() {
    let more = "[agents.sales]\npolicy = \"missing.json\"\n";
    let text = format!("{GOOD}{more}");
    let line = |path: &[&str]| ConfigError::at_setting(&text, path, "wrong").line;
    assert_eq!(line(&["agent", "greeting"]), 23);
    assert_eq!(line(&["agents", "sales", "policy"]), 25);
    // What is not written is wrong with its table.
    assert_eq!(line(&["agents", "sales", "tools"]), 24);
    assert_eq!(line(&["agent", "policy"]), 21);
    assert_eq!(line(&["outbound"]), 1);
}
