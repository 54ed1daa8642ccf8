//! A row of the table: one outcome that a rule asks for.

use crate::fault::Fault;
use crate::proxy::Proxy;
use crate::stage::Stage;
use anyhow::Result;
use serde::Serialize;

/// An IP family.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(crate) enum Family {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

impl Family {
    /// Both.
    pub(crate) const BOTH: &'static [Self] = &[Self::V4, Self::V6];
    /// IPv4 alone.
    pub(crate) const ONLY_V4: &'static [Self] = &[Self::V4];

    /// The other one.
    pub(crate) fn other(self) -> Self {
        match self {
            Self::V4 => Self::V6,
            Self::V6 => Self::V4,
        }
    }

    /// As in `spec.ipFamilies`.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::V4 => "IPv4",
            Self::V6 => "IPv6",
        }
    }
}

/// Why a proxy's outcome is not the expected one, and that is known.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Why {
    /// We decided otherwise, on purpose; the reason.
    Ours(&'static str),
    /// A fault or gap of kube-proxy; what it is, with the number of its issue
    /// where there is one.
    Fault(&'static str),
}

/// A proxy of which it is known that it does otherwise.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Differs {
    pub(crate) proxy: Proxy,
    /// In this family only, if any.
    pub(crate) family: Option<Family>,
    pub(crate) why: Why,
}

/// A story: it returns when everything is as expected.
pub(crate) type Story = fn(&Stage<'_>) -> Result<()>;

/// One row. `Row::new(…)`, then what is unusual about it.
#[derive(Debug)]
pub(crate) struct Row {
    /// Number of the rule in semantics.md.
    pub(crate) rule: u8,
    /// Unique.
    pub(crate) name: &'static str,
    /// What clients see, in a sentence.
    pub(crate) expected: &'static str,
    /// The text that says so: an API field, a KEP, an RFC.
    pub(crate) source: &'static str,
    /// A lab that is wrong in this way must turn the row red.
    pub(crate) fault: Fault,
    /// Cases of cases.md that it covers.
    pub(crate) cases: &'static [&'static str],
    /// It is tried in each.
    pub(crate) families: &'static [Family],
    pub(crate) differs: Vec<Differs>,
    /// It changes what others rely on: a node, its proxy, the API server.
    pub(crate) alone: bool,
    /// The only proxy that it is about, if it is about something that others
    /// do not have.
    pub(crate) only: Option<Proxy>,
    pub(crate) story: Story,
}

impl Row {
    /// A row in both families that runs beside others.
    pub(crate) fn new(
        rule: u8,
        name: &'static str,
        expected: &'static str,
        source: &'static str,
        fault: Fault,
        story: Story,
    ) -> Self {
        Self {
            rule,
            name,
            expected,
            source,
            fault,
            cases: &[],
            families: Family::BOTH,
            differs: Vec::new(),
            alone: false,
            only: None,
            story,
        }
    }

    /// Cases that it covers.
    pub(crate) fn cases(mut self, cases: &'static [&'static str]) -> Self {
        self.cases = cases;
        self
    }

    /// It has no family, or only one has it: it is tried with IPv4.
    pub(crate) fn once(mut self) -> Self {
        self.families = Family::ONLY_V4;
        self
    }

    /// No other row runs meanwhile.
    pub(crate) fn alone(mut self) -> Self {
        self.alone = true;
        self
    }

    /// It is about an option that no other proxy has.
    pub(crate) fn only(mut self, proxy: Proxy) -> Self {
        self.only = Some(proxy);
        self
    }

    /// Whether it is about this proxy.
    pub(crate) fn concerns(&self, proxy: Proxy) -> bool {
        self.only.is_none_or(|only| only == proxy)
    }

    /// A proxy is known to do otherwise.
    pub(crate) fn differs(mut self, proxy: Proxy, why: Why) -> Self {
        self.differs.push(Differs {
            proxy,
            family: None,
            why,
        });
        self
    }

    /// kube-proxy is known to do otherwise, in both modes.
    pub(crate) fn kube_proxy_differs(self, why: Why) -> Self {
        self.differs(Proxy::KubeProxyNftables, why)
            .differs(Proxy::KubeProxyIptables, why)
    }

    /// A proxy is known to do otherwise in one family.
    pub(crate) fn differs_in(mut self, proxy: Proxy, family: Family, why: Why) -> Self {
        self.differs.push(Differs {
            proxy,
            family: Some(family),
            why,
        });
        self
    }

    /// Why this proxy is known to do otherwise, if it is.
    pub(crate) fn difference(&self, proxy: Proxy, family: Family) -> Option<Why> {
        self.differs
            .iter()
            .find(|it| it.proxy == proxy && it.family.is_none_or(|only| only == family))
            .map(|it| it.why)
    }

    /// `rule=17`, `case=K04`, or a part of the name.
    pub(crate) fn matches(&self, filter: &str) -> bool {
        if let Some(rule) = filter.strip_prefix("rule=") {
            return self.rule.to_string() == rule;
        }
        if let Some(case) = filter.strip_prefix("case=") {
            return self.cases.contains(&case);
        }
        self.name.contains(filter)
    }
}
