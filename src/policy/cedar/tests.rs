use antiphon_agent::Caller;
use serde_json::json;

use super::*;
use crate::policy::{AmountField, Policies, Spent};

const BANK: &str = r#"
@id("customers pay")
permit (principal in Tenant::"bank", action == Action::"send_money", resource)
when { principal.verified >= 2 };

permit (principal, action in [Action::"look_up", Action::"weather"], resource);

@id("large")
@ask("somebody has to look at it")
forbid (principal, action == Action::"send_money", resource)
when { context.arguments.cents > 10000 };

@id("abroad")
@confirm("Abroad, really?")
forbid (principal, action == Action::"send_money", resource)
unless { context.arguments.to like "DE*" };

@id("night")
@reason("nobody pays at night")
@tell("Payments are possible from 6 to 22 o'clock.")
forbid (principal, action == Action::"send_money", resource)
when { context.now.toTime() < duration("6h") || context.now.toTime() >= duration("22h") };

@id("budget")
forbid (principal, action == Action::"send_money", resource)
when { context.spent.daily.amount + context.arguments.cents > 50000 };

@id("staff")
forbid (principal, action, resource)
when { principal.roles.contains("trainee") };

@id("fee")
forbid (principal, action == Action::"send_money", resource)
when { context.arguments has fee && context.arguments.fee.greaterThan(decimal("1.5")) };
"#;

fn tools() -> Vec<ToolDefinition> {
    let tool = |name: &str, schema: Value| {
        let mut tool = ToolDefinition::new(name, "A tool.");
        tool.input_schema = Some(Arc::new(schema));
        tool
    };
    vec![
        tool(
            "send_money",
            json!({ "type": "object", "required": ["to", "cents"], "properties": {
                "to": { "type": "string" }, "cents": { "type": "integer" },
                "fee": { "type": "number" },
            } }),
        ),
        tool("look_up", json!({ "type": "object" })),
        tool("weather", json!({ "type": "object" })),
        tool("unmentioned", json!({ "type": "object" })),
    ]
}

fn limits() -> Vec<Limit> {
    let day = std::time::Duration::from_secs(24 * 60 * 60);
    let daily = Limit::new("daily", "send_*", day).unwrap();
    vec![daily.amount(AmountField::minor("cents"), 50_000)]
}

fn bank() -> Cedar {
    let policies = CedarPolicies::new("bank").text("money.cedar", BANK).unwrap();
    policies.for_tools(&tools(), &limits()).unwrap()
}

fn context() -> PolicyContext {
    let now = "2026-03-02T10:00:00Z".parse().unwrap();
    let mut cx = PolicyContext::new("session", now).caller(Caller::new("ann").scope("bank"));
    cx.spent = vec![Spent::new("daily", 0, 0)];
    cx.verified(2)
}

fn call(name: &str, args: Value) -> ToolCall {
    ToolCall { id: "1".into(), name: name.into(), args: args.as_object().unwrap().clone() }
}

fn judged(cx: &PolicyContext, name: &str, args: Value) -> (Verdict, Vec<String>) {
    let judgement = bank().judge(cx, &call(name, args));
    let ids = judgement.policies.iter().map(|id| id.to_string()).collect();
    (judgement.verdict, ids)
}

fn pays(cents: i64) -> Value {
    json!({ "to": "DE02", "cents": cents })
}

#[test]
fn who_decided_is_told_by_name_or_by_file_and_line() {
    let cx = context();
    assert_eq!(
        judged(&cx, "send_money", pays(5)),
        (Verdict::Allow, vec!["bank/customers pay".into()])
    );
    assert_eq!(
        judged(&cx, "weather", json!({})),
        (Verdict::Allow, vec!["bank/money.cedar:6".into()])
    );
    let (verdict, ids) = judged(&cx, "unmentioned", json!({}));
    assert!(matches!(verdict, Verdict::Deny(denial) if denial.reason == "no policy permits it"));
    assert_eq!(ids, ["bank"]);
    let (verdict, _) = judged(&cx, "unheard_of", json!({}));
    assert!(matches!(verdict, Verdict::Deny(_)));
}

#[test]
fn people_are_asked_where_it_would_be_allowed_otherwise() {
    let cx = context();
    let asks = Verdict::Ask { reason: "somebody has to look at it".into() };
    assert_eq!(judged(&cx, "send_money", pays(10_001)), (asks, vec!["bank/large".into()]));
    let abroad = json!({ "to": "FR76", "cents": 5 });
    let confirms = Verdict::Confirm { read_back: "Abroad, really?".into() };
    assert_eq!(judged(&cx, "send_money", abroad), (confirms, vec!["bank/abroad".into()]));
    let (verdict, _) = judged(&cx.clone().verified(1), "send_money", pays(10_001));
    assert!(matches!(verdict, Verdict::Deny(_)), "nobody is asked about what is denied anyway");
}

#[test]
fn time_spend_roles_and_decimals_count() {
    let deny = |cx: &PolicyContext, args: Value| match judged(cx, "send_money", args) {
        (Verdict::Deny(denial), ids) => (denial, ids.join(" ")),
        other => panic!("{other:?}"),
    };
    let mut night = context();
    night.now = "2026-03-02T23:00:00Z".parse().unwrap();
    let (denial, by) = deny(&night, pays(5));
    assert_eq!((&*denial.reason, &*by), ("nobody pays at night", "bank/night"));
    assert!(denial.to_model.unwrap().starts_with("Payments are possible"));
    let mut spent = context();
    spent.spent = vec![Spent::new("daily", 3, 49_996)];
    assert_eq!(deny(&spent, pays(5)).1, "bank/budget");
    let mut trainee = context();
    let caller = Caller::new("ann").scope("bank").claim("roles", json!(["clerk", "trainee"]));
    trainee.caller = Some(caller);
    assert_eq!(deny(&trainee, pays(5)).1, "bank/staff");
    let with_fee = |fee: Value| json!({ "to": "DE02", "cents": 5, "fee": fee });
    assert_eq!(deny(&context(), with_fee(json!(1.51))).1, "bank/fee");
    assert_eq!(judged(&context(), "send_money", with_fee(json!(1.5))).0, Verdict::Allow);
}

#[test]
fn what_is_of_another_type_overflows_or_is_not_known_is_denied() {
    let cx = context();
    for args in [
        json!({ "to": "DE02" }),
        json!({ "to": "DE02", "cents": "5" }),
        json!({ "to": "DE02", "cents": 5.5 }),
        json!({ "to": 5, "cents": 5 }),
        json!({ "to": "DE02", "cents": 5, "fee": 1e30 }),
        json!({ "to": "DE02", "cents": u64::MAX }),
    ] {
        let (verdict, _) = judged(&cx, "send_money", args.clone());
        assert!(matches!(verdict, Verdict::Deny(_)), "{args}");
    }
    let mut full = context();
    full.spent = vec![Spent::new("daily", 1, i64::MAX as u64)];
    let (verdict, ids) = judged(&full, "send_money", pays(5));
    assert!(matches!(verdict, Verdict::Deny(_)) && ids == ["bank/budget"], "{ids:?}");
    full.spent.clear();
    assert!(matches!(judged(&full, "send_money", pays(5)).0, Verdict::Deny(_)));
    let mut nobody = context();
    nobody.caller = None;
    assert!(matches!(judged(&nobody, "send_money", pays(5)).0, Verdict::Deny(_)));
}

#[test]
fn whatever_is_wrong_is_told_with_file_and_line() {
    let wrong = |text: &str| {
        let read = CedarPolicies::new("bank").text("p.cedar", text);
        match read.and_then(|policies| policies.for_tools(&tools(), &limits())) {
            Err(error) => (error.line, error.to_string()),
            Ok(_) => panic!("{text}"),
        }
    };
    let cases = [
        (
            "permit (principal, action, resource);\n\npermit (principal,, resource);",
            3,
            "unexpected",
        ),
        ("\npermit (principal, action == Action::\"fly\", resource);", 2, "fly"),
        (
            "permit (principal, action == Action::\"send_money\", resource)\n\
             when {\n  context.arguments.euros > 5 };",
            3,
            "euros",
        ),
        (
            "permit (principal, action == Action::\"send_money\", resource)\n\
             when { context.arguments.to > 5 };",
            2,
            "Long",
        ),
        (
            "permit (principal, action == Action::\"send_money\", resource)\n\
             when { context.arguments.fee.lessThan(decimal(\"1.0\")) };",
            2,
            "fee",
        ),
        ("\n@ask(\"me\")\npermit (principal, action, resource);", 2, "forbid"),
        ("\npermit (principal == ?principal, action, resource);", 2, "template"),
        (
            "@id(\"a\") permit (principal, action, resource);\n\
             @id(\"a\") permit (principal, action, resource);",
            2,
            "two policies",
        ),
        ("@id(\"\") permit (principal, action, resource);", 1, "empty"),
    ];
    for (text, line, reason) in cases {
        let (found, error) = wrong(text);
        assert_eq!(found, Some(line), "{error}");
        assert!(error.starts_with("p.cedar:") && error.contains(reason), "{error}");
    }
    assert!(CedarPolicies::new("bank").file("/no/such.cedar").is_err());
}

#[test]
fn they_are_composed_with_other_policies() {
    struct Never;
    impl Policy for Never {
        fn id(&self) -> &str {
            "never"
        }
        fn decide(&self, _: &PolicyContext, _: &ToolCall) -> Verdict {
            Verdict::Deny(Denial::private("never"))
        }
    }
    let alone = Policies::new([Arc::new(bank()) as Arc<dyn Policy>]).unwrap();
    let judgement = alone.judge(&context(), &call("send_money", pays(5)));
    assert_eq!(judgement.verdict, Verdict::Allow);
    assert_eq!(judgement.policies, ["bank/customers pay".into()]);
    let both = Policies::new([Arc::new(bank()) as Arc<dyn Policy>, Arc::new(Never)]).unwrap();
    let judgement = both.judge(&context(), &call("send_money", pays(5)));
    assert!(matches!(judgement.verdict, Verdict::Deny(_)));
    assert_eq!(judgement.policies, ["never".into()]);
}

#[test]
fn the_schema_can_be_read_by_people() {
    let text = Cedar::schema_text(&tools(), &limits()).unwrap();
    assert!(text.contains("entity Caller in [Tenant]"), "{text}");
    assert!(text.contains("cents") && text.contains("decimal"), "{text}");
}

/// Policies are about one caller, one tenant, or anybody, however that is said.
#[test]
fn a_policy_is_about_whom_its_scope_names() {
    let policies = r#"
        @id("all") permit (principal, action, resource);
        @id("ann") forbid (principal == Caller::"ann", action, resource);
        @id("of the bank") forbid (principal in Tenant::"bank", action, resource)
        unless { principal.known };
        @id("in bob") forbid (principal in Caller::"bob", action, resource);
        @id("callers of the shop") forbid (principal is Caller in Tenant::"shop", action, resource);
    "#;
    let cedar = CedarPolicies::new("who").text("who.cedar", policies).unwrap();
    let cedar = cedar.for_tools(&tools(), &[]).unwrap();
    let call = ToolCall { id: "c".into(), name: "weather".into(), args: Default::default() };
    for (caller, by) in [
        (Caller::new("ann"), "who/ann"),
        (Caller::new("ann").scope("bank"), "who/ann"),
        (Caller::new("bob"), "who/in bob"),
        (Caller::new("eve").scope("bank"), "who/all"),
        (Caller::new("").scope("bank"), "who/of the bank"),
        (Caller::new("eve").scope("shop"), "who/callers of the shop"),
        (Caller::new("eve"), "who/all"),
    ] {
        let what = format!("{caller:?}");
        let cx = PolicyContext::new("s", jiff::Timestamp::UNIX_EPOCH).caller(caller);
        let judged = cedar.judge(&cx, &call);
        let policies: Vec<&str> = judged.policies.iter().map(|id| &**id).collect();
        assert_eq!(policies, [by], "{what}");
        assert_eq!(judged.verdict == Verdict::Allow, by == "who/all", "{what}");
    }
}

/// Many policies are judged together, and as they would be one by one.
#[test]
fn many_policies_judged_together_say_what_each_says() {
    let amounts = (0..30).map(|n| {
        let (kind, clause) = match n % 3 {
            0 => ("permit", format!("when {{ context.arguments.cents > {n} }}")),
            1 => ("permit", format!("unless {{ context.arguments.cents == {n} }}")),
            _ => {
                let both = "when { principal.known } unless { principal.verified >= 0";
                ("forbid", format!("{both} && context.arguments.cents < {} }}", 10 * n))
            }
        };
        format!("@id(\"{n}\") {kind} (principal, action == Action::\"send_money\", resource) {clause};\n")
    });
    let odd = r#"
        @id("plain") permit (principal in Tenant::"bank", action, resource);
        @id("overflows") permit (principal, action == Action::"send_money", resource)
        when { context.arguments.cents < 1000 || context.arguments.cents * 9000000000000000000 > 0 };
        @id("\"} when {") forbid (principal, action == Action::"send_money", resource)
        when { context.arguments.to == "} when { \" true" };
    "#;
    let text = amounts.collect::<String>() + odd;
    let load = || {
        let policies = CedarPolicies::new("many").text("many.cedar", &text).unwrap();
        policies.for_tools(&tools(), &[]).unwrap()
    };
    let (together, mut apart) = (load(), load());
    for tool in apart.tools.values_mut() {
        tool.decide.apart();
    }
    let mut verdicts = HashSet::new();
    for cents in [-1, 0, 1, 4, 17, 25, 30, 100, 250, 400, 5_000] {
        for (caller, to) in [
            (Caller::new("ann").scope("bank"), "DE"),
            (Caller::new(""), "DE"),
            (Caller::new("eve"), "} when { \" true"),
        ] {
            let args = json!({ "to": to, "cents": cents }).as_object().cloned().unwrap();
            let call = ToolCall { id: "c".into(), name: "send_money".into(), args };
            let cx = PolicyContext::new("s", jiff::Timestamp::UNIX_EPOCH).caller(caller);
            let (one, other) = (together.judge(&cx, &call), apart.judge(&cx, &call));
            assert_eq!(one.verdict, other.verdict, "{cents} {to}");
            assert_eq!(one.policies, other.policies, "{cents} {to}");
            verdicts.insert(format!("{:?}", one.verdict).chars().take(4).collect::<String>());
        }
    }
    assert!(verdicts.len() > 1, "some pass, and some do not: {verdicts:?}");
    let tool = &together.tools["send_money"];
    assert!(tool.decide.about(&[]).all(|group| group.is_together()), "they are judged together");
}
