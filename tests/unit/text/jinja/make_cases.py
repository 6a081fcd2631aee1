"""Writes cases.json, small templates that use one feature each with what Jinja2 makes of them, and the fuzzer's first inputs:

    python3 -m venv V && V/bin/pip install jinja2==3.1.6 && V/bin/python tests/unit/text/jinja/make_cases.py

The environment is the one that transformers gives to chat templates. An error is recorded by its kind: "raise" with the message of
raise_exception, else "error"."""
import json
import pathlib
import sys

import jinja2
import jinja2.ext
from jinja2.sandbox import ImmutableSandboxedEnvironment

HERE = pathlib.Path(__file__).parent
CORPUS = HERE.parents[2] / "fuzz" / "corpus" / "jinja"


class Generation(jinja2.ext.Extension):
    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("support"), [], [], body).set_lineno(line)

    def support(self, caller):
        return caller()


class Namespace(jinja2.utils.Namespace):
    def __init__(*args, **kwargs):
        self, *args = args
        for name in dict(*args, **kwargs):
            Namespace.check(name)
        jinja2.utils.Namespace.__init__(self, *args, **kwargs)

    def __setitem__(self, name, value):
        Namespace.check(name)
        jinja2.utils.Namespace.__setitem__(self, name, value)

    @staticmethod
    def check(name):
        if name.startswith("_"):
            raise jinja2.exceptions.SecurityError(name)


def raise_exception(message):
    raise jinja2.exceptions.TemplateError(message)


def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


ENVIRONMENT = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols])
ENVIRONMENT.filters["tojson"] = tojson
ENVIRONMENT.globals["raise_exception"] = raise_exception
ENVIRONMENT.globals["namespace"] = Namespace

VARIABLES = {
    "s": "Hello World", "empty": "", "u": "Grüße, 世界! 𝔘", "w": "  pad\n\tx  ", "csv": "a,b,,c", "i": 7, "zero": 0, "neg": -3, "f": 1.5, "big": 1e22,
    "t": True, "no": False, "nil": None, "list": [3, 1, 2], "names": ["b", "a", "C", "ä"], "mixed": [1, "x", None, True, 2.5, [1, {"k": "v"}]], "nothing": [],
    "d": {"b": 1, "a": "two", "items": [1, 2], "B": None}, "quotes": "it's \"q\" \\ \u0007\u00a0",
    "messages": [{"role": "system", "content": "Sys"}, {"role": "user", "content": "Hi", "n": 2}, {"role": "assistant", "content": None, "n": 1, "x": {"y": [5, 6]}}],
}

GROUPS = {
    "output": ["", "plain", "{{ s }}", "{{ i }}{{ f }}{{ big }}{{ t }}{{ nil }}", "{{ mixed }}", "{{ d }}", "{{ quotes }}{{ [quotes] }}", "{{ (1,) }}{{ () }}{{ (1, 2) }}",
               "{{ 1, 2 }}", "{{ none }}{{ None }}{{ true }}{{ True }}", "{{ 'a' 'b' \"c\" }}", "{{ 'x\\n\\t\\'\\\\\\x41\\u00e9\\U0001F600\\101\\q' }}", "{{ {'a': 1, 2: [3], none: {}} }}",
               "{{ 0x1F + 0b11 + 0o17 + 1_000 }} {{ 1e3 }} {{ 1.50 }} {{ 2.5e-7 }} {{ 1e16 }} {{ 123456789012345.6 }}", "{{ range(3) }}{{ range(2, 5) }}", "{{ d.items() }}{{ d.keys() }}"],
    "white space": ["a\n{% if t %}\nb\n{% endif %}\nc\n", "a  {%- if t -%}  b  {%- endif -%}  c", "  {% if t %}x{% endif %}\n  {{ i }}\n", "x  {%+ if t %}y{% endif +%}\nz", "a {{- i -}} b",
                    "a\n\n  {# c #}\n  b {#- c -#} c", "{% raw %}\n{{ x }} {% if %}\n  {%- endraw %}!", "a\r\n{% set q = 1 %}\r\n{{ q }}\r\nb\r\n", "\u00a0 {%- if t %}x{% endif %}\u2003{{- i }}",
                    "{% for x in list %}\n  - {{ x }}\n{% endfor %}\n", "{% set q %}\n a\n{% endset %}[{{ q }}]", "tail\n\n", "{{ '\n' }}|", "{#a#}{#\n#}b"],
    "undefined": ["[{{ missing }}]", "{{ missing.x }}", "{{ missing['x'] }}", "{{ missing() }}", "{{ missing + 1 }}", "{{ missing ~ 'x' }}", "{{ missing == missing2 }}{{ missing == none }}", "{{ s.nope }}|{{ d.nope }}|{{ list[9] }}",
                  "{{ s.nope.x }}", "{% for x in missing %}{{ x }}{% else %}none{% endfor %}", "{{ 1 if no }}", "{{ missing|length }}{{ missing|default('d') }}{{ missing is defined }}", "{{ not missing }}",
                  "{{ missing[1:] }}", "{{ 'a' in missing }}", "{{ missing < 1 }}", "{{ missing|list }}{{ missing|join(',') }}{{ missing|items|list }}", "{{ (1 if no).x }}", "{{ [missing] }}"],
    "operators": ["{{ 7 // 2 }}{{ -7 // 2 }}{{ 7 % -3 }}{{ -7 % 3 }}{{ 7 / 2 }}{{ 4 / 2 }}", "{{ 2 ** 10 }} {{ 2 ** -1 }} {{ -2 ** 2 }} {{ 7.5 // 2 }} {{ -7.5 % 2 }}", "{{ 1 / 0 }}", "{{ 1 % 0 }}", "{{ 1 + 2 * 3 - 4 }}",
                  "{{ 'a' + 'b' }}{{ [1] + [2] }}{{ (1,) + (2,) }}", "{{ 'ab' * 3 }}{{ 2 * [0] }}{{ 'x' * -1 }}", "{{ 'a' + 1 }}", "{{ 1 + 'a' }}", "{{ [1] + (2,) }}", "{{ 1 ~ 'a' ~ none ~ 2.0 ~ [1] }}",
                  "{{ 1 < 2 < 3 }}{{ 1 < 3 < 2 }}{{ 1 == 1.0 }}{{ true == 1 }}{{ '1' == 1 }}", "{{ 'a' < 'b' }}{{ [1, 2] < [1, 3] }}{{ 'Z' < 'a' }}", "{{ 1 < 'a' }}", "{{ 'el' in s }}{{ 1 in list }}{{ 'a' in d }}{{ 9 not in list }}", "{{ 1 in s }}",
                  "{{ 1 in none }}", "{{ 0 or 'x' }}{{ 1 and 'y' }}{{ '' and 'z' }}{{ not 1 }}", "{{ 'a' if t else 'b' }}{{ 'a' if no else 'b' if nil else 'c' }}", "{{ -i }}{{ +i }}{{ -'a' }}", "{{ true + true }}{{ -true }}",
                  "{{ 9223372036854775807 - 1 }}", "{{ '%s is %d, %05.2f %x %%' % ('a', 3, 2.5, 255) }}", "{{ '%s' % none }}{{ '%r' % 'a' }}{{ '%-4s|%4s' % ('a', 'b') }}{{ '%(k)s' % {'k': 1} }}", "{{ '%d' % 'a' }}", "{{ '%s %s' % 'a' }}", "{{ 'x' % 1 }}"],
    "members": ["{{ d.a }}{{ d['a'] }}", "{{ d['items'] }}", "{{ messages[0].role }}{{ messages[-1]['role'] }}{{ messages.0.role }}", "{{ s[0] }}{{ s[-1] }}{{ u[1] }}{{ u[-1] }}", "{{ list[1:] }}{{ list[:-1] }}{{ list[::-1] }}{{ list[::2] }}",
                "{{ s[1:4] }}{{ s[::-1] }}{{ u[2:9] }}{{ u[::-1] }}{{ s[-99:99] }}{{ s[5:1] }}", "{{ s[8:2:-2] }}{{ s[:2] }}{{ list[5:] }}", "{{ list[::0] }}", "{{ i[1:] }}", "{{ d[1:] }}", "{{ list['a'] }}|{{ list[1.5] }}", "{{ list.append(1) }}", "{{ d.update({}) }}",
                "{{ d.pop('a') }}", "{{ s.__class__ }}", "{{ s.__class__() }}", "{{ d.get('a') }}{{ d.get('q') }}{{ d.get('q', 5) }}", "{{ d.keys()|list }}{{ d.values()|list }}{{ d.items()|list }}", "{{ list.index(1) }}{{ list.count(1) }}", "{{ list.index(9) }}", "{{ messages[2].x.y[1] }}"],
    "text methods": ["{{ s.upper() }}{{ s.lower() }}{{ 'ab cd'.title() }}{{ 'ABC'.capitalize() }}{{ 'aB'.swapcase() }}{{ u.upper() }}", "[{{ w.strip() }}][{{ w.lstrip() }}][{{ w.rstrip() }}][{{ 'xxaxx'.strip('x') }}][{{ '世a世'.lstrip('世') }}]",
                     "{{ csv.split(',') }}{{ csv.split(',', 1) }}{{ w.split() }}{{ ' a b c '.split(none, 1) }}{{ ' a b c '.rsplit(maxsplit=1) }}{{ csv.rsplit(',', 1) }}", "{{ s.split('') }}", "{{ 'a\\nb\\r\\nc'.splitlines() }}{{ 'a\\nb'.splitlines(true) }}",
                     "{{ s.startswith('He') }}{{ s.endswith(('x', 'ld')) }}{{ s.startswith('l', 2) }}{{ s.startswith(1) }}", "{{ s.replace('l', 'L') }}{{ s.replace('l', '', 1) }}{{ 'ab'.replace('', '-') }}", "{{ s.find('o') }}{{ s.find('o', 5) }}{{ s.rfind('o') }}{{ s.find('zz') }}{{ u.find('世') }}{{ s.index('W') }}",
                     "{{ s.index('zz') }}", "{{ s.count('l') }}{{ 'aaa'.count('aa') }}{{ 'ab'.count('') }}", "{{ ','.join(['a', 'b']) }}", "{{ ','.join([1]) }}", "{{ 'a-b-c'.partition('-') }}{{ 'a-b-c'.rpartition('-') }}{{ 'a'.partition('-') }}",
                     "{{ 'abc'.removeprefix('a') }}{{ 'abc'.removesuffix('c') }}", "{{ '7'.zfill(3) }}{{ '-7'.zfill(4) }}{{ 'a'.ljust(3, '.') }}{{ 'a'.rjust(3) }}{{ 'ab'.center(5, '*') }}{{ 'ab'.center(7, '*') }}",
                     "{{ '12'.isdigit() }}{{ 'a1'.isalnum() }}{{ 'ab'.isalpha() }}{{ ' '.isspace() }}{{ ''.isdigit() }}{{ 'AB'.isupper() }}{{ 'ab'.islower() }}{{ '1'.isupper() }}", "{{ '{} {1}'.format(1, 2) }}", "{{ '{1} {0} {k.role}'.format(1, 2, k=messages[0]) }}", "{{ '{} {} {k}'.format(1, 2, k=3) }}{{ '{{}}'.format() }}", "{{ s.nosuch() }}"],
    "loops": ["{% for x in list %}{{ x }}{% endfor %}", "{% for x in list %}{{ loop.index }}{{ loop.index0 }}{{ loop.revindex }}{{ loop.revindex0 }}{{ loop.first }}{{ loop.last }}{{ loop.length }},{% endfor %}", "{% for k, v in d.items() %}{{ k }}={{ v }};{% endfor %}",
              "{% for k in d %}{{ k }}{% endfor %}{% for c in 'añ' %}<{{ c }}>{% endfor %}", "{% for x in list if x > 1 %}{{ x }}{{ loop.length }}{% endfor %}", "{% for x in [] %}{% else %}empty{% endfor %}", "{% for x in list %}{% if x == 1 %}{% break %}{% endif %}{{ x }}{% endfor %}",
              "{% for x in list %}{% if x == 1 %}{% continue %}{% endif %}{{ x }}{% endfor %}", "{% for x in list %}{{ loop.previtem }}<{{ x }}>{{ loop.nextitem }} {% endfor %}", "{% for x in list %}{{ loop.cycle('a', 'b') }}{{ loop.changed(x // 2) }}{% endfor %}",
              "{% set q = 0 %}{% for x in list %}{% set q = q + x %}{{ q }}{% endfor %}{{ q }}", "{% set ns = namespace(q=0) %}{% for x in list %}{% set ns.q = ns.q + x %}{% endfor %}{{ ns.q }}", "{% for a, b in [(1, 2), [3, 4]] %}{{ a }}{{ b }}{% endfor %}", "{% for a, b in [(1, 2, 3)] %}{% endfor %}", "{% for a, (b, c) in [(1, (2, 3))] %}{{ c }}{% endfor %}",
              "{% for x in 5 %}{% endfor %}", "{% for x in none %}{% endfor %}", "{% for m in messages[::-1] %}{{ m.role[0] }}{% endfor %}", "{% for x in [[1, [2]], 3] recursive %}{{ loop.depth }}{{ loop(x) if x is iterable else x }}{% endfor %}", "{% for x in list %}{% for y in list %}{{ loop.index }}{% endfor %}{{ loop.index }} {% endfor %}",
              "{% for x in range(2) %}{{ x }}{% endfor %}{% for x in range(1, 9, 3) %}{{ x }}{% endfor %}", "{{ range(200000) }}", "{% for x in list recursive %}{{ loop.index }}{% endfor %}"],
    "statements": ["{% if no %}a{% elif i == 7 %}b{% elif t %}c{% else %}d{% endif %}", "{% set a, b = 1, 2 %}{{ a + b }}", "{% set x = 'a' %}{% if t %}{% set x = 'b' %}{% endif %}{{ x }}", "{% set q %}a{{ i }}{% endset %}{{ q }}{% set q | upper | trim %} b {% endset %}{{ q }}",
                   "{% filter upper %}a{{ s }}{% endfilter %}", "{% with a = 1, b = i %}{{ a }}{{ b }}{% endwith %}{{ a }}", "{% generation %}x{{ i }}{% endgeneration %}", "{% set ns = namespace() %}{% set ns.a = 1 %}{{ ns.a }}{{ ns.b is defined }}", "{% set d.x = 1 %}", "{% set ns = namespace(d, z=9) %}{{ ns.a }}{{ ns.z }}",
                   "{% set ns = namespace(_a=1) %}", "{{ dict(a=1, b=2) }}{{ dict([('x', 1)]) }}", "{% if t: %}x{% endif %}", "{% if %}{% endif %}", "{% endif %}", "{% if t %}", "{% for x in %}{% endfor %}", "{% nosuch %}", "{{ }}", "{{ 'a }}", "{{ (1 }}", "{% set 1 = 2 %}", "{# open", "{% raw %}x", "{{ a b }}", "{% break %}", "{{ 1 +}}", "{{ s | }}", "{{ s is }}"],
    "macros": ["{% macro m(a, b=2) %}[{{ a }}|{{ b }}]{% endmacro %}{{ m(1) }}{{ m(1, 3) }}{{ m(b=4, a=5) }}{{ m() }}", "{% macro m(a, b=a) %}{{ b }}{% endmacro %}{{ m(3) }}", "{% macro m() %}{{ varargs }}{{ kwargs }}{% endmacro %}{{ m(1, x=2) }}", "{% macro m(a) %}{% endmacro %}{{ m(1, 2) }}", "{% macro m(a) %}{% endmacro %}{{ m(x=2) }}",
               "{% macro m(a) %}{% endmacro %}{{ m(1, a=2) }}", "{% macro m() %}<{{ caller() }}>{% endmacro %}{% call m() %}x{{ i }}{% endcall %}", "{% macro m() %}{{ caller(1) }}{% endmacro %}{% call(q) m() %}{{ q + 1 }}{% endcall %}", "{% macro f(n) %}{{ n }}{% if n %}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(5) }}",
               "{% set x = 1 %}{% macro m() %}{{ x }}{% endmacro %}{% set x = 2 %}{{ m() }}", "{% for x in list %}{% macro m() %}{{ x }}{% endmacro %}{{ m() }}{% endfor %}", "{% macro m(a) %}{% set a = a + 1 %}{{ a }}{% endmacro %}{{ m(1) }}{{ a }}", "{{ m }}{% macro m() %}{% endmacro %}{{ m }}", "{% macro m(a, b) %}{{ a }}{{ b }}{% endmacro %}{{ m(*[1, 2]) }}{{ m(**{'a': 3, 'b': 4}) }}",
               "{% macro m(x) %}{{ x }}{% endmacro %}{{ m('a')|upper ~ m('b') }}", "{% macro m(a=1, b) %}{% endmacro %}"],
    "filters of text": ["{{ s|upper }}{{ s|lower }}{{ 'a b-c'|title }}{{ 'aBC'|capitalize }}", "[{{ w|trim }}]{{ 'xax'|trim('x') }}", "{{ s|replace('l', '_') }}{{ s|replace('l', '_', 1) }}{{ 12|replace(1, 3) }}", "{{ 'a\\nb\\n\\nc'|indent }}|{{ 'a\\nb'|indent(2, true) }}|{{ 'a\\n\\nb'|indent(1, blank=true) }}|{{ 'a\\nb'|indent('>>') }}",
                        "{{ '<a href=\"x\">&'|e }}{{ 1|escape }}", "{{ '%s-%s'|format(1, 'b') }}{{ '%(a)s'|format(a=1) }}", "{{ 12|string + '!' }}{{ none|string }}", "{{ s|length }}{{ u|length }}{{ list|count }}{{ d|length }}", "{{ 5|length }}", "{{ s|reverse }}{{ u|reverse }}", "{{ s|safe }}", "{{ nil|upper }}{{ i|lower }}"],
    "filters of numbers": ["{{ '42'|int }}{{ ' -7 '|int }}{{ 'x'|int }}{{ 'x'|int(5) }}{{ 3.9|int }}{{ '3.9'|int }}{{ 'ff'|int(0, 16) }}{{ none|int }}{{ true|int }}", "{{ '1.5'|float }}{{ 'x'|float }}{{ 'x'|float(2.5) }}{{ 3|float }}{{ '1e3'|float }}{{ 'inf'|float }}", "{{ -3|abs }}{{ (-2.5)|abs }}", "{{ 2.5|round }}{{ 3.5|round }}{{ 1.234|round(2) }}{{ 7|round }}{{ 1.21|round(1, 'ceil') }}{{ 1.29|round(1, 'floor') }}",
                           "{{ list|sum }}{{ messages[1:]|sum('n') }}{{ list|sum(start=10) }}", "{{ list|min }}{{ list|max }}{{ names|min }}{{ names|max }}{{ []|max }}", "{{ 'a'|abs }}", "{{ ['a']|sum }}"],
    "filters of sequences": ["{{ list|first }}{{ list|last }}{{ s|first }}{{ s|last }}{{ []|first }}", "{{ list|join }}{{ list|join('-') }}{{ messages|join(',', attribute='role') }}{{ mixed|join('/') }}", "{{ 'abc'|list }}{{ d|list }}", "{{ list|sort }}{{ list|sort(reverse=true) }}{{ names|sort }}{{ names|sort(case_sensitive=true) }}{{ messages[1:]|sort(attribute='n')|map(attribute='n')|list }}", "{{ mixed|sort }}",
                             "{{ d|dictsort }}{{ d|dictsort(true) }}{{ {'a': 2, 'b': 1}|dictsort(by='value') }}{{ {'a': 1, 'b': 2}|dictsort(reverse=true) }}", "{{ [1, 1, 2, 'a', 'A']|unique|list }}{{ [1, 1, 2, 'a', 'A']|unique(true)|list }}", "{{ list|reverse|list }}", "{{ d|items|list }}", "{{ list|items }}{{ list|items|list }}",
                             "{{ names|map('upper')|list }}{{ messages|map(attribute='role')|join(',') }}{{ messages|map(attribute='n', default=0)|list }}{{ ['a,b']|map('replace', ',', ';')|list }}", "{{ list|map('nosuch')|list }}", "{{ list|map|list }}", "{{ list|select('odd')|list }}{{ list|reject('odd')|list }}{{ mixed|select|list }}{{ list|select('gt', 1)|list }}{{ list|select('in', [1, 3])|list }}",
                             "{{ messages|selectattr('role', 'equalto', 'user')|list|length }}{{ messages|rejectattr('content')|map(attribute='role')|list }}{{ messages|selectattr('x.y')|list|length }}{{ messages|selectattr('n', 'defined')|list|length }}", "{% set g = list|map('string') %}{{ g|list }}{{ g|list }}", "{{ list|map('string')|first }}{% if list|select('gt', 9) %}true{% endif %}", "{{ nil|default('x') }}{{ nil|default('x', true) }}{{ 0|d(1, boolean=true) }}"],
    "json": ["{{ mixed|tojson }}{{ d|tojson }}{{ quotes|tojson }}{{ '</b>&'|tojson }}", "{{ messages|tojson(indent=2) }}", "{{ d|tojson(indent=0) }}{{ []|tojson(indent=4) }}{{ {}|tojson(indent=4) }}", "{{ d|tojson(separators=(',', ':')) }}", "{{ {'b': 1, 'a': 2}|tojson(sort_keys=true) }}", "{{ u|tojson(ensure_ascii=true) }}", "{{ missing|tojson }}", "{{ 1.0|tojson }}{{ 1e100|tojson }}{{ {1: 2, none: 3, true: 4}|tojson }}", "{{ (1, 2)|tojson }}", "{{ namespace()|tojson }}", "{{ {(1, 2): 3}|tojson }}"],
    "tests": ["{{ s is string }}{{ i is string }}{{ i is number }}{{ t is number }}{{ t is integer }}{{ f is float }}{{ t is boolean }}{{ t is true }}{{ no is false }}{{ 1 is true }}", "{{ d is mapping }}{{ list is mapping }}{{ s is iterable }}{{ i is iterable }}{{ list is sequence }}{{ s is sequence }}{{ d is sequence }}{{ nil is none }}{{ missing is none }}",
              "{{ missing is undefined }}{{ s is defined }}{{ d.q is defined }}{{ s is not defined }}", "{{ 3 is odd }}{{ 3 is even }}{{ 9 is divisibleby 3 }}{{ 9 is divisibleby(2) }}", "{{ 1 is in [1] }}{{ 1 is eq 1 }}{{ 1 is ne(2) }}{{ 1 is lt 2 }}{{ 1 is ge 2 }}{{ 'a' is equalto 'a' }}{{ none is sameas none }}{{ 1 is sameas true }}", "{{ 'a' is lower }}{{ 'A' is upper }}{{ range is callable }}{{ 'upper' is filter }}{{ 'odd' is test }}", "{{ 1 is nosuch }}", "{{ not s is string }}{{ s is string and i is string or t }}", "{{ 'a' is odd }}"],
    "errors": ["{{ raise_exception('stop: ' ~ i) }}", "a{% if t %}{{ raise_exception(\"it's\") }}{% endif %}", "{{ nosuch() }}", "{{ s() }}", "{{ s|nosuch }}", "{% if no %}{{ s|nosuch }}{% endif %}ok", "{{ s|upper(1) }}", "{{ s.upper(1) }}", "{{ s|replace('a') }}", "{{ range() }}", "{{ range(1, 2, 0) }}", "{{ raise_exception() }}", "{{ {[]: 1} }}", "{{ dict(1) }}", "{{ 'a' * 'b' }}", "{{ none.x }}", "{{ none.x.y }}"],
    "chat": ["{% for m in messages %}<|{{ m.role }}|>\n{{ m['content'] if m.content is string else m.content|default('', true) }}<|end|>\n{% endfor %}{% if add_generation_prompt is defined and add_generation_prompt %}<|assistant|>{% endif %}",
             "{%- set ns = namespace(last=-1) -%}\n{%- for m in messages -%}\n  {%- if m.role == 'user' -%}\n    {%- set ns.last = loop.index0 -%}\n  {%- endif -%}\n{%- endfor -%}\n{{ ns.last }}", "{% if messages[0]['role'] == 'system' %}{% set rest = messages[1:] %}{% set system = messages[0]['content'] %}{% else %}{% set rest = messages %}{% endif %}{{ system }}{{ rest|length }}",
             "{% for m in messages %}{% if (m['role'] == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('roles must alternate') }}{% endif %}{% endfor %}"],
}


def main():
    cases = []
    CORPUS.mkdir(parents=True, exist_ok=True)
    for group, templates in GROUPS.items():
        for template in templates:
            case = {"group": group, "template": template}
            try:
                case["expected"] = ENVIRONMENT.from_string(template).render(**VARIABLES)
                if any(word in case["expected"] for word in ("object at 0x", "<function", "<built-in")):
                    sys.exit(f"{template!r} prints an address: {case['expected']!r}")
            except Exception as e:
                case["raise" if type(e) is jinja2.exceptions.TemplateError else "error"] = str(e)
            cases.append(case)
        inputs = "\n".join(templates).encode() if group not in ("errors", "statements") else None
        for i, template in enumerate(templates if inputs is None else []):
            (CORPUS / f"{group.replace(' ', '_')}_{i}").write_bytes(template.encode() + b"\0" + json.dumps(VARIABLES, ensure_ascii=False).encode())
        if inputs is not None:
            (CORPUS / group.replace(" ", "_")).write_bytes(inputs + b"\0" + json.dumps(VARIABLES, ensure_ascii=False).encode())
    (HERE / "cases.json").write_text(json.dumps({"variables": VARIABLES, "cases": cases}, ensure_ascii=False, indent=1) + "\n")
    print(len(cases), "cases")


if __name__ == "__main__":
    main()
