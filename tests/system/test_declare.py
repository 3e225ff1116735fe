"""Settings that are declared once: flags, groups of --help, defaults and refused values."""

import dataclasses
import math

import pytest
from absl import flags

from bert_tf.system import declare
from bert_tf.system.declare import ORIGINAL, REQUIRED, inherited_setting, setting


def _refuse_odd(value, flag):
    if value % 2:
        raise ValueError(f"{flag}={value} is odd.")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Base:
    rate: float | None = setting(0.5, "Rate. If unset, 0.5.", heading="Speed", unset=True, least=0, below=1)
    size: int = setting(4, "Size.", least=2, check=_refuse_odd)
    no_flag: int = 7


@dataclasses.dataclass(frozen=True, kw_only=True)
class Own(Base):
    output_dir: str = setting(REQUIRED, "Where.", heading=ORIGINAL)
    kind: str | None = setting(None, "Kind.", choices=("a", "b"))
    names: list[str] | None = setting(None, "Names.", heading="Speed")
    more: tuple[str, ...] = setting((), "More.")
    size: int = inherited_setting(Base, "size", default=8, help="Own size.")
    from_: float = setting(1.0, "From.", above=0)


@pytest.fixture
def values():
    return flags.FlagValues()


def test_flags_become_settings(values):
    declare.define_flags(Own, values=values, from_=2.0)
    values(["script", "--output_dir=x", "--names=a,b", "--more=c", "--more=d,e", "--kind=b"])
    settings = declare.settings_of(Own, values)
    assert settings == Own(output_dir="x", names=["a", "b"], more=["c", "d,e"], kind="b", from_=2.0)
    assert (settings.rate, declare.value_of(settings, "rate"), settings.size) == (None, 0.5, 8)
    assert "no_flag" not in values and values.rate == 0.5
    assert declare.flags_given(values) == {"output_dir", "names", "more", "kind"}
    assert declare.required_flags(values) == ["output_dir"]
    values(["script", "--rate=0.25"])
    assert declare.settings_of(Own, values).rate == 0.25
    values(["script", "--names=a", "--size=3"])
    with pytest.raises(ValueError, match="^--size=3 is odd.$"):
        declare.settings_of(Own, values)


def test_a_script_may_leave_settings_out(values):
    declare.define_flags(Own, without=("size", "output_dir"), values=values)
    assert "size" not in values and "rate" in values and declare.required_flags(values) == []


@pytest.mark.parametrize(("given", "message"), [
    ({"rate": 1.0}, "--rate=1 must be at least 0, less than 1."),
    ({"rate": -0.5}, "--rate=-0.5 must be at least 0, less than 1."),
    ({"rate": math.nan}, "--rate=nan must be at least 0, less than 1."),
    ({"size": 1}, "--size=1 must be at least 2."),
    ({"size": 5}, "--size=5 is odd."),
    ({"from_": 0.0}, "--from=0 must be more than 0."),
    ({"from_": math.inf}, "--from=inf must be more than 0."),
    ({"kind": "c"}, "--kind=c must be one of a, b."),
])  # fmt: skip
def test_values_out_of_bounds(given, message):
    with pytest.raises(ValueError) as error:
        declare.check_values(Own(output_dir="x", **given))
    assert str(error.value) == message
    declare.check_values(Own(output_dir="x", rate=0, size=2, from_=1e-9, kind="a"))


def test_help_is_in_groups_with_the_originals_flags_first(values):
    assert declare.help_text(values) == ""
    declare.define_flags(Own, values=values, from_=2.0)
    assert declare.setting_group(Own, "Speed") == ("rate", "size", "names", "more", "from_")
    assert declare.help_text(values) == (
        "\nAs in the original:\n"
        "  --output_dir: Where. (required)\n"
        "  --kind <a|b>: Kind.\n"
        "\nSpeed:\n"
        "  --rate: Rate. If unset, 0.5. (at least 0, less than 1)\n"
        "  --size: Own size. (default: 8; at least 2)\n"
        "  --names: Names.\n"
        "  --more: More.\n"
        "  --from: From. (default: 2.0; more than 0)\n"
    )


def test_what_is_given_differs_from_the_defaults():
    assert declare.non_default_settings(Own(output_dir="x", size=8, rate=0.5), ("size", "rate", "kind")) == ["rate"]
