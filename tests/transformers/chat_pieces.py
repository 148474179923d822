"""Small pieces of Jinja, one feature each, for chat_vectors.py."""

VARIABLES = {
    "name": "Ada", "text": "  a b\tc \n", "lines": "one\ntwo\r\n\nfour", "n": 7, "x": 2.5, "no": None, "yes": True,
    "list": [3, 1, 2], "words": ["pear", "Apple", "fig", "apple"], "dict": {"b": 1, "a": [1, {"k": None}], "items": "own", "é": "ü"},
    "people": [{"name": "Bo", "age": 31, "tags": {"x": 1}}, {"name": "al", "age": 9}, {"name": "Cy", "age": 31, "tags": {"x": 2}}],
    "unicode": "Straße 😀 ÉCOLE", "empty": "", "none_list": [], "html": "<a href=\"x\">'&'</a>",
}

PIECES = r"""
{{ 1 + 2 * 3 - 4 }} {{ 7 // 2 }} {{ -7 // 2 }} {{ 7 % 3 }} {{ -7 % 3 }} {{ 7 / 2 }} {{ 2 ** 10 }} {{ 2 ** -1 }}
{{ 1.5 + 1 }} {{ 1e3 }} {{ 1e16 }} {{ 1e-5 }} {{ 0.1 + 0.2 }} {{ 1_000 }} {{ 0x1F }} {{ 0b101 }} {{ 0o17 }} {{ 3.0 }} {{ 7.5 // 2 }} {{ -7.5 % 2 }}
{{ 1 == 1.0 }} {{ 1 == true }} {{ '1' == 1 }} {{ none == none }} {{ nope == nada }} {{ [1, 2] == [1, 2] }} {{ {'a': 1} == {'a': 1} }} {{ (1,) == [1] }}
{{ 1 < 2 < 3 }} {{ 1 < 3 < 2 }} {{ 'a' < 'b' }} {{ [1, 2] < [1, 3] }} {{ 3 >= 3 }} {{ 3 != 4 }} {{ 2 > 1 }} {{ 2 <= 1 }}
{{ 'a' < 1 }}
{{ 'a' + 1 }}
{{ none + 1 }}
{{ nope + 1 }}
{{ nope.a }}
{{ nope['a'] }}
{{ nope() }}
{{ name() }}
{{ dict.nope.more }}
{{ 1 / 0 }}
{{ 1 % 0 }}
{{ 'a' in 'cat' }} {{ 'x' not in 'cat' }} {{ 1 in list }} {{ 'b' in dict }} {{ 'z' in dict }} {{ 1 in nope }} {{ '' in '' }}
{{ 1 in 'a' }}
{{ nope in 'a' }}
{{ 1 in 5 }}
{{ not true }} {{ not nope }} {{ not '' or false }} {{ 1 and 2 }} {{ 0 or 'x' }} {{ '' and 1 }} {{ none or none }} {{ not 1 == 2 }}
{{ 'yes' if yes else 'no' }} {{ 'yes' if no }} {{ 'a' if no else 'b' if nope else 'c' }} {{ (1 if true else 2) + 3 }}
{{ 'a' ~ 1 ~ none ~ true ~ 1.0 ~ nope ~ [1] }}
{{ 'ab' * 3 }} {{ [1, 2] * 2 }} {{ 3 * 'x' }} {{ 'a' * 0 }} {{ [1] + [2] }} {{ (1, 2) + (3,) }}
{{ none }} {{ true }} {{ False }} {{ [] }} {{ {} }} {{ () }} {{ (1,) }} {{ (1, 2) }} {{ ['a', "b'c", 'd"e', 'f\'"g', '\n\t\\', 'é', '\x07', '\u2028'] }}
{{ dict }} {{ list }} {{ people[0] }} {{ {'a': 1, 2: 'b', none: true, 1.5: []} }}
{{ name[0] }} {{ name[-1] }} {{ name[5] }} {{ name[1:] }} {{ name[::-1] }} {{ name[:-1] }} {{ name[-2:] }} {{ name[10:] }} {{ unicode[4:8] }} {{ unicode[7] }}
{{ list[0] }} {{ list[-1] }} {{ list[9] }} {{ list[1:] }} {{ list[::-1] }} {{ list[::2] }} {{ list[-5:2] }} {{ list[2:0:-1] }} {{ list[:0] }} {{ (1, 2, 3)[1:] }}
{{ list['x'] }} {{ list.0 }} {{ people.0.name }} {{ people[0]['name'] }} {{ people[0].nope }} {{ people[1].tags.x }}
{{ dict.a }} {{ dict['a'][1].k }} {{ dict.items is callable }} {{ dict['items'] }} {{ dict.get('b') }} {{ dict.get('z') }} {{ dict.get('z', 5) }} {{ dict['é'] }}
{% for k, v in dict.items() %}{{ k }}={{ v }};{% endfor %} {{ dict.keys() | list }} {{ dict.values() | list }} {{ dict | length }} {{ dict | list }}
{{ dict.update({'z': 1}) }}
{{ list.append(4) }}
{{ text.strip() }}|{{ text.lstrip() }}|{{ text.rstrip() }}|{{ 'xxaxx'.strip('x') }}|{{ 'abcba'.lstrip('ab') }}|{{ '\u00a0 é\u3000'.strip() }}|{{ 'a\n'.rstrip('\n') }}|{{ '\x1c a'.strip() }}
{{ 'a,b,,c'.split(',') }} {{ 'a,b,c'.split(',', 1) }} {{ text.split() }} {{ ' a  b c '.split(none, 1) }} {{ ''.split() }} {{ ''.split(',') }} {{ 'a--b'.split('--')[-1] }} {{ 'a b'.split(maxsplit=1) }}
{{ 'a,b,c'.rsplit(',', 1) }} {{ 'a b  c '.rsplit(none, 1) }} {{ ' a b c'.rsplit() }} {{ 'abc'.split('') }}
{{ 'Hello'.startswith('He') }} {{ 'Hello'.endswith(('x', 'lo')) }} {{ 'Hello'.upper() }} {{ 'Hello'.lower() }} {{ 'hello wORLD'.title() }} {{ 'hELLO'.capitalize() }} {{ "they're x1y".title() }}
{{ 'aXbXc'.replace('X', '-') }} {{ 'aXbXc'.replace('X', '-', 1) }} {{ 'abc'.replace('', '.') }} {{ 'aaa'.replace('aa', 'b') }} {{ 'a'.replace('a', '') }}
{{ 'abcabc'.find('c') }} {{ 'abc'.find('z') }} {{ 'abcabc'.rfind('b') }} {{ 'abab'.count('ab') }} {{ '-'.join(['a', 'b']) }} {{ 'éa'.find('a') }} {{ 'abc'.index('b') }}
{{ '12'.isdigit() }} {{ 'ab'.isalpha() }} {{ 'a1'.isalnum() }} {{ ' \n'.isspace() }} {{ 'AB'.isupper() }} {{ 'ab1'.islower() }} {{ ''.isdigit() }} {{ '1'.islower() }}
{{ 'a=b=c'.partition('=') }} {{ 'abc'.rpartition('=') }} {{ 'a=b=c'.rpartition('=') }} {{ 'prefix-x'.removeprefix('prefix-') }} {{ 'x.txt'.removesuffix('.txt') }} {{ '7'.zfill(3) }} {{ '-7'.zfill(4) }}
{{ lines.splitlines() }} {{ 'a\x0bb\u2028c'.splitlines() }} {{ ''.splitlines() }} {{ 'a\n'.splitlines() }} {{ 'aB'.swapcase() }}
{{ '{} and {}'.format(1, 'x') }} {{ '{1}{0}{1}'.format('a', 'b') }} {{ '{k}{{}}'.format(k=none) }}
{{ '%s is %d' % ('a', 3) }} {{ '%s' % 1.5 }} {{ '%.2f%%' % 2.345 }} {{ '%05d|%-3d|%x' % (42, 7, 255) }} {{ '%r' % 'q' }} {{ "%s-%s" | format(1, 2) }}
{{ unicode.upper() }} {{ unicode.lower() }} {{ unicode | length }} {{ unicode | upper }} {{ unicode | title }} {{ unicode | reverse }}
{{ text | trim }}| {{ 'xyx' | trim('x') }} {{ name | upper }} {{ name | lower }} {{ 'hello wORLD-foo (bar)' | title }} {{ 'hELLO' | capitalize }} {{ 5 | string + 'a' }}
{{ nope | default('d') }} {{ '' | default('d') }} {{ '' | default('d', true) }} {{ none | default('d') }} {{ none | default('d', boolean=true) }} {{ nope | d(3) }} {{ nope.x | default(1) }}
{{ nope | default }}|{{ nope | length }}|{{ nope | list }}|{{ nope | join }}|{{ nope | string }}|{{ nope | trim }}|{{ nope | upper }}|{{ nope | items | list }}
{{ [1, 2, 3] | join(', ') }} {{ people | join('+', attribute='name') }} {{ 'abc' | join('.') }} {{ [none, true, 1.0] | join(' ') }} {{ [] | join }} {{ dict | join(',') }}
{{ list | first }} {{ list | last }} {{ '' | first }} {{ 'abc' | first }} {{ 'abc' | last }} {{ list | length }} {{ list | count }} {{ 'abc' | list }} {{ none_list | first is undefined }}
{{ 5 | length }}
{{ none | length }}
{{ none | list }}
{{ list | sort }} {{ list | sort(reverse=true) }} {{ words | sort }} {{ words | sort(case_sensitive=true) }} {{ people | sort(attribute='age') | map(attribute='name') | list }} {{ list | reverse | list }}
{{ [1, 'a'] | sort }}
{{ dict | items | list }} {{ {'b': 2, 'A': 1, 'c': 0} | dictsort }} {{ {'b': 2, 'A': 1} | dictsort(by='value', reverse=true) }} {{ {'b': 2, 'A': 1} | dictsort(true) }}
{{ list | sum }} {{ list | max }} {{ list | min }} {{ people | sum(attribute='age') }} {{ words | unique | list }} {{ words | max }} {{ [] | sum }} {{ list | sum(start=10) }} {{ [] | max is undefined }}
{{ list | map('string') | list }} {{ words | map('upper') | join }} {{ people | map(attribute='tags.x') | list }} {{ people | map(attribute='tags', default='-') | list }} {{ words | map('replace', 'p', 'q') | list }}
{{ list | select('odd') | list }} {{ list | reject('odd') | list }} {{ [0, 1, '', 'a'] | select | list }} {{ list | select('gt', 1) | list }} {{ words | select('in', ['fig']) | list }} {{ [1, none] | reject('none') | list }}
{{ people | selectattr('age', 'equalto', 31) | map(attribute='name') | list }} {{ people | selectattr('tags') | list | length }} {{ people | rejectattr('tags', 'defined') | map(attribute='name') | join }} {{ people | selectattr('tags.x', 'eq', 2) | list | length }}
{{ '42' | int }} {{ 'x' | int }} {{ 'x' | int(7) }} {{ '3.9' | int }} {{ 3.9 | int }} {{ -3.9 | int }} {{ true | int }} {{ none | int }} {{ 'ff' | int(base=16) }} {{ ' 5 ' | int }} {{ '1_0' | int }}
{{ '1.5' | float }} {{ 'x' | float }} {{ 2 | float }} {{ none | float }} {{ '1e3' | float }} {{ 2.5 | round }} {{ 3.5 | round }} {{ 2.675 | round(2) }} {{ 7 | round }} {{ 2.1 | round(0, 'ceil') }} {{ 2.9 | round(method='floor') }} {{ -3 | abs }} {{ (-2.5) | abs }}
{{ nope | int }}
{{ nope | abs }}
{{ lines | indent }}|{{ lines | indent(2, true) }}|{{ lines | indent(width='> ', blank=true) }}|{{ '' | indent(2, true) }}|{{ 'a\n' | indent }}|
{{ html | e }} {{ html | safe }} {{ 'a b  c' | wordcount }} {{ 'aXa' | replace('a', 'b', 1) }} {{ 'a' | replace('a', 1) }}
{{ dict | tojson }} {{ people | tojson }} {{ 1.0 | tojson }} {{ 1e20 | tojson }} {{ 'é"\\\n\t\x01\x7f😀/' | tojson }} {{ none | tojson }} {{ true | tojson }} {{ (1, 2) | tojson }} {{ {1: 2, none: 3, true: 4, 1.5: 5} | tojson }}
{{ dict | tojson(indent=2) }} {{ [] | tojson(indent=2) }} {{ {} | tojson(indent=4) }} {{ [[], {}] | tojson(indent=1) }}
{{ dict | tojson(ensure_ascii=true) }} {{ '😀é' | tojson(ensure_ascii=True) }} {{ dict | tojson(separators=(',', ':')) }} {{ {'b': 1, 'a': 2} | tojson(sort_keys=true) }} {{ {'b': [1]} | tojson(indent='\t', separators=(',', ' = ')) }}
{{ nope | tojson }}
{{ html | tojson }}
{{ nope is defined }} {{ name is defined }} {{ nope is undefined }} {{ no is none }} {{ name is string }} {{ dict is mapping }} {{ list is iterable }} {{ name is iterable }} {{ 5 is iterable }} {{ nope is iterable }} {{ no is iterable }} {{ dict is iterable }}
{{ list is sequence }} {{ dict is sequence }} {{ name is sequence }} {{ 5 is sequence }} {{ (1,) is sequence }} {{ 5 is number }} {{ true is number }} {{ 1.5 is number }} {{ 5 is integer }} {{ true is integer }} {{ 1.5 is float }} {{ true is boolean }} {{ 1 is boolean }}
{{ true is true }} {{ 1 is true }} {{ false is false }} {{ 0 is false }} {{ 3 is odd }} {{ 3 is even }} {{ 9 is divisibleby 3 }} {{ 9 is divisibleby(2) }} {{ 'a' is lower }} {{ 'A' is upper }} {{ range is callable }} {{ name is callable }}
{{ 1 is eq 1 }} {{ 1 is ne 1 }} {{ 1 is lt 2 }} {{ 1 is gt 2 }} {{ 1 is ge 1 }} {{ 1 is le 0 }} {{ 1 is in [1, 2] }} {{ 'a' is in 'cat' }} {{ none is sameas none }} {{ 1 is equalto 1 }} {{ 3 is not odd }} {{ name is not defined }} {{ not name is defined }} {{ nope is defined or yes }} {{ name is defined and no is none }}
{{ 1 is nosuchtest }}
{{ 1 | nosuchfilter }}
{{ 'a' if false }}|{{ ('a' if false) is undefined }}
{% if nope %}a{% elif n > 5 %}b{% else %}c{% endif %} {% if list %}full{% endif %} {% if none_list %}full{% else %}empty{% endif %} {% if not nope and n == 7 %}ok{% endif %}
{% for i in list %}{{ i }}{% if not loop.last %},{% endif %}{% endfor %} {% for i in [] %}x{% else %}none{% endfor %} {% for c in 'abc' %}[{{ c }}]{% endfor %} {% for k in dict %}{{ k }}{% endfor %} {% for i in nope %}x{% endfor %}
{% for i in range(5) if i % 2 == 0 %}{{ loop.index }}:{{ i }}/{{ loop.length }} {% endfor %} {% for i in range(2, 8, 3) %}{{ i }} {% endfor %} {% for i in range(3, 0, -1) %}{{ i }}{% endfor %} {{ range(3) | list }}
{% for i in list %}{{ loop.index }}{{ loop.index0 }}{{ loop.revindex }}{{ loop.revindex0 }}{{ loop.first }}{{ loop.last }}{{ loop.length }}{{ loop.depth }}{{ loop.depth0 }}{{ loop.previtem }}{{ loop.nextitem }}{{ loop.cycle('a', 'b') }}{{ loop.changed(i > 1) }} {% endfor %}
{% for a in [1, 2] %}{% for b in [3, 4] %}{{ loop.depth }}{{ a }}{{ b }} {% endfor %}{{ loop.depth }}{% endfor %}
{% for i in [1, 2, 3, 4] %}{% if i == 2 %}{% continue %}{% endif %}{% if i == 4 %}{% break %}{% endif %}{{ i }}{% endfor %}
{% for a, b in [(1, 2), (3, 4)] %}{{ a }}-{{ b }} {% endfor %} {% for a, (b, c) in [(1, (2, 3))] %}{{ a }}{{ b }}{{ c }}{% endfor %}
{% for a, b in [(1, 2, 3)] %}x{% endfor %}
{% for i in 5 %}x{% endfor %}
{% set a = 1 %}{% for i in [1, 2] %}{% set a = a + i %}{{ a }} {% endfor %}{{ a }} {% if true %}{% set a = 9 %}{% endif %}{{ a }}
{% set ns = namespace(a=1, b='x') %}{% for i in [1, 2] %}{% set ns.a = ns.a + i %}{% endfor %}{{ ns.a }}{{ ns.b }}{{ ns.c }} {% set ns.c = [1] %}{{ ns.c }}
{% set ns = namespace({'k': 1}, j=2) %}{{ ns.k }}{{ ns['j'] }}
{% set a.b = 1 %}
{% set dict.b = 1 %}
{% set a, b = 1, 2 %}{{ a }}{{ b }} {% set c = 1, 2 %}{{ c }} {% set (d, e) = [3, 4] %}{{ d + e }}
{% set block %}  inside {{ name }} {% set inner = 1 %}{% endset %}[{{ block }}]{{ inner }} {% set up | upper | trim %} abc {% endset %}[{{ up }}]
{% macro m(a, b='B', c=none) %}({{ a }},{{ b }},{{ c }},{{ varargs }},{{ kwargs }}){% endmacro %}{{ m(1) }}{{ m(1, 2, 3, 4) }}{{ m(b=5, a=6) }}{{ m() }}{{ m(1, z=3) }}
{% macro outer(x) %}<{{ x }}{{ caller() if caller is defined }}>{% endmacro %}{{ outer(1) }}{% call outer(2) %}body {{ name }}{% endcall %}
{% macro each(items) %}{% for i in items %}{{ caller(i, loop.index) }};{% endfor %}{% endmacro %}{% call(item, at) each(['a', 'b']) %}{{ at }}{{ item }}{% endcall %}
{% macro down(n) %}{{ n }}{% if n > 0 %}{{ down(n - 1) }}{% endif %}{% endmacro %}{{ down(5) }}
{% macro seen() %}{{ later }}{{ name }}{% endmacro %}{% set later = 'L' %}{{ seen() }}{% set f = seen %}{{ f() | length }}
{% macro a(x) %}{% set y = x %}{{ y }}{% endmacro %}{{ a(1) }}{{ y is defined }}
{% with a = 1, b = name %}{{ a }}{{ b }}{% endwith %}{{ a is defined }} {% with %}{% set q = 2 %}{{ q }}{% endwith %}{{ q is defined }}
{% filter upper | replace('A', '4') %}a {{ name }} b{% endfilter %}
{% raw %}{{ x }}{% for %}{% endraw %}|{% raw -%}  a  {%- endraw %}|
a{# comment #}b{#- trimmed -#} c {# {{ nested }} #}
{%- generation %} kept {{ name }}{% set g = 1 %} {% endgeneration -%} {{ g is defined }}
{% if true %}x{% endif %}<NL>y{% if true %}<NL>  z<NL>{% endif %}<NL>w{{ n }}<NL>v
<NL>  {% if true %}<NL>    a<NL>  {% endif %}<NL>  b {% if true %} c {% endif %}<NL>  {{ n }}<NL>
  {%+ if true %}x{% endif +%}<NL>y  {%- if true -%}  z  {%- endif -%}  w
{{- n -}}   a {{- n }} b {{ n -}}<NL> c
{%- for i in [1, 2] -%}<NL>  {{ i }}<NL>{%- endfor -%}<NL>end<NL><NL>
a  {#- x -#}  b<NL>  {# y #}<NL>c {# z +#}<NL>d
{% set s = '''x''' %}
{{ 'a' 'b' "c" }} {{ 'it\'s' }} {{ "\"" }} {{ '\u00e9\x41\101\
!' }} {{ '\q' }}
{{ {'a': {'b': 1}}['a']['b'] }} {{ [[1, 2], [3]][0][1] }} {{ {'a': 1,} }} {{ [1,] }} {{ {'k': 'v'}.k }} {{ 'x'.upper().lower() }} {{ ('a' ~ 'b').upper() }}
{{ -1 | abs }} {{ (-1) | abs }} {{ 2 * 3 | string }} {{ -n }} {{ +n }} {{ not n }} {{ - - 1 }} {{ 1 - -1 }}
{{ dict.a[0] }} {{ dict['a']|length }} {{ words[n - 6] }} {{ words[-1][0] }} {{ people[-1].name[0] }}
{{ strftime_now('%Y-%m-%d') }} {{ strftime_now("%d %B %Y, %A") }} {{ dict(a=1, b=2) }} {{ dict({'x': 1}, y=2) }}
{{ raise_exception('no') }}
{% if false %}{{ raise_exception('no') }}{% endif %}fine
{{ namespace(a=1).a }} {{ nope == '' }} {{ nope != 1 }} {{ [nope] }} {{ nope ~ 'x' }}
{% for x in [1, 2, 3] %}{{ x }}{% endfor %}{{ x }}
{% set loop = 5 %}{{ loop }}{% for i in [1] %}{{ loop.index }}{% endfor %}{{ loop }}
{{ true + true }} {{ true * 3 }} {{ [true, 1] | unique | list }} {{ 1 in [true] }} {{ {1: 'a'}[true] }} {{ {1: 'a'}[1.0] }}
{{ 10 // 3 * 3 + 10 % 3 }} {{ 2 + 3 ~ 4 }} {{ 1 ~ 2 * 3 }} {{ 2 ** 3 ** 2 }} {{ -2 ** 2 }} {{ 7 // 2.0 }}
{{ 'abc' is string and 'abc' | length > 2 }} {{ n is number and not n is string }} {{ list | length - 1 }} {{ (list | length) * 2 }}
{{ no.x }}
{{ no['x'] is undefined }} {{ n.x is undefined }} {{ name.nope is undefined }}
{{ 'a'.nope() }}
{% for i in range(200000) %}{% endfor %}
{% unknown %}
{% if true %}open
{% endif %}
{{ 1 + }}
{{ (1 }}
{{ 'open }}
{{ a b }}
{% for in x %}{% endfor %}
{# open
{% set 1 = 2 %}
{{ name | attr('nope') is undefined }} {{ dict | attr('b') }}
{{ no | map("upper") | list }}{{ no | select | list }}{{ no | selectattr("x") | list }}{{ no | reject | list }}{{ no | rejectattr("x") | list }}
{{ 0 | map("upper") | list }}{{ false | select("odd") | list }}{{ nope | map("nofilter") | list }}{{ empty | rejectattr("x") | list }}{{ {} | select | list }}
{{ 1 | map("upper") | list }}
{{ true | select | list }}
{{ no | join }}
{{ 0 | list }}
{{ nope | dictsort }}
{{ dict | dictsort(by="x") }}
{{ people | map(attribute="age", x=1) | list }}
{{ people | sort(attribute="age,name") | map(attribute="name") | join }} {{ people | sort(attribute="zz") | map(attribute="name") | join }} {{ people | sort(true, true, "name") | map(attribute="name") | join }}
{{ people | sort(attribute="tags") }}
{{ people | unique | list }}
{{ 25 | round(-1) }} {{ 35 | round(-1) }} {{ -25 | round(-1) }} {{ 25.0 | round(-1) }} {{ 1234.5 | round(-2, "ceil") }} {{ 151 | round(-2, "floor") }} {{ 2.675 | round(2) }}
{{ list | indent }}
{{ "a-b c_d é1 ② x" | wordcount }} {{ list | wordcount }} {{ 1.5 | wordcount }}
{% set p = ["a", "b"] %}{{ "%s%s".format(*p) }} {{ "{}{}".format(*p) }} {{ "{x}{y}".format(*[], **{"x": 1, "y": 2}) }} {{ range(*[1, 4]) | list }}
{{ "aaa" | replace(*["a", "b"]) }} {{ "a" is in(*[["a"]]) }} {{ namespace(**{"a": 1}).a }}
{% macro m(a, b=2) %}{{ a }}{{ b }}{{ varargs }}{{ kwargs }}{% endmacro %}{{ m(*[1, 2, 3], **{"z": 4}) }}{{ m(*"x") }}{{ m(**{"b": 5}) }}{{ m(7, *[8], q=1, **{"r": 2}) }}
{% macro m() %}{{ caller(*["u"]) }}{% endmacro %}{% call(q) m() %}[{{ q }}]{% endcall %}
{{ range(*[1], 2) }}
{{ namespace(**{"a": 1}, b=2).a }}
{{ namespace(**{}, *[1]) }}
{{ range(*[1], *[2]) }}
{{ range(*no) }}
{{ namespace(**no) }}
{{ namespace(**{1: 2}) }}
{{ namespace(a=1, **{"a": 2}) }}
{{ strftime_now("%f|%z|%Z") }} {{ strftime_now("%%f%Y%%z%Z%%") }}
{{ people | map(attribute="tags.x", default="-") | join(",") }} {{ people | map(attribute="zz", default=no) | join(",") }} {{ people | sum(attribute="age", start=1) }} {{ list | sum(start=10) }}
{{ {"b": 1, "A": 2} | dictsort }} {{ {"b": 1, "A": 2} | dictsort(true) }} {{ {"b": 1, "a": 2} | dictsort(true) }} {{ {"b": 1, "a": 2} | dictsort(false, "value") }} {{ {"b": 1, "a": 2} | dictsort(reverse=true) }} {{ {"b": 1, "a": 2} | dictsort(true, "key", true) }}
{{ words | max }} {{ words | max(true) }} {{ words | min }} {{ words | min(case_sensitive=true) }} {{ ["b", "A", "C"] | min }} {{ ["b", "A", "C"] | max(true) }} {{ people | max(attribute="name") }} {{ people | min(true, "name") }}
{{ ["", "a"] | map("default", "z", boolean=true) | list }} {{ ["a b", "c"] | map("indent", width=2, first=true) | list }} {{ ["a", "b"] | map("replace", "a", "c") | list }} {{ [[1, 2], [3]] | map("join", d="-") | list }}
{{ [[3, "a"], [1, "b"]] | map(attribute="0") | list }} {{ [[3, "a"], [1, "b"]] | map(attribute=1) | list }} {{ [[3, "b"], [1, "a"]] | sort(attribute="0") }} {{ [[3, ["x"]], [1, ["y"]]] | map(attribute="1.0") | join }} {{ {"0": 5} | list }} {{ [{"0": 5}] | map(attribute="0") | first is defined }}
{{ "0b101" | int(0, 2) }} {{ "101" | int(base=2) }} {{ "0x1f" | int(0, 16) }} {{ "0o17" | int(5, 8) }} {{ "0b2" | int(9, 2) }} {{ "0b1" | int(7) }} {{ "z" | int(default=4) }} {{ "1.9" | int }} {{ "1_0" | int }}
{{ "x" | float(2.5) }} {{ "x" | float(default=1) }} {{ "1.5" | float(9) }} {{ none | float(3) }} {{ "1e2" | float }} {{ "" | default("d", false) }} {{ 0 | default(5, boolean=false) }} {{ 0 | default(5, true) }} {{ nope | default("d", false) }} {{ no | default("d", true) }}
{{ lines | indent(2, false) }}|{{ lines | indent(2, true) }}|{{ lines | indent(2, first=false, blank=true) }}|{{ lines | indent("> ", true, false) }}|{{ lines | indent(first=true) }}
{{ words | sort(false, true) }} {{ words | sort(reverse=true) }} {{ words | sort(case_sensitive=true, reverse=false) }} {{ words | unique | list }} {{ words | unique(true) | list }} {{ people | unique(attribute="age") | map(attribute="name") | list }} {{ people | unique(false, "age") | list | length }}
{{ 2.345 | round(2, "floor") }} {{ 2.341 | round(2, "ceil") }} {{ 2.5 | round(0, "ceil") }} {{ 2.5 | round(method="floor") }} {{ -2.345 | round(1, "ceil") }} {{ "aXaX" | replace("X", "-", 1) }} {{ "aXaX" | replace("X", "-", count=1) }} {{ "aXaX" | replace("X", "-", none) }}
{{ {"b": [1, {"c": none}], "a": "é<&'"} | tojson }} {{ {"b": 1, "a": "é"} | tojson(ensure_ascii=true) }} {{ {"b": 1, "a": 2} | tojson(sort_keys=true) }} {{ {"a": [1, 2]} | tojson(separators=(",", ":")) }} {{ {"a": [1, {}], "b": []} | tojson(indent=1) }} {{ {"a": [1]} | tojson(indent=2, separators=(";", "=")) }}
{{ people | selectattr("age", "gt", 10) | map(attribute="name") | list }} {{ people | rejectattr("tags") | list | length }} {{ list | select("in", [1, 2]) | list }} {{ list | reject("equalto", 1) | list }} {{ list | select("divisibleby", 2) | list }} {{ people | selectattr("age") | list | length }} {{ people | selectattr("name", "in", ["Bo"]) | list | length }}
{{ [1, 2, 3, 4, 5] | batch(2) | list }} {{ [1, 2, 3] | batch(2, 'x') | list }} {{ 'abc' | batch(2) | list }} {{ [] | batch(3) | list }} {{ [1, 2] | batch(0) | list }} {{ [1, 2] | batch(-1, 'x') | list }} {{ dict | batch(linecount=2, fill_with=0) | list }} {{ [1, 2, 3, 4] | batch(2, 'x') | map('join', '-') | join(' ') }}
{{ [1, 2, 3, 4, 5, 6, 7] | slice(3) | list }} {{ [1, 2, 3, 4, 5, 6, 7] | slice(3, 'x') | list }} {{ [1, 2, 3, 4] | slice(2, 'x') | list }} {{ 'abc' | slice(2) | list }} {{ [1] | slice(3) | list }} {{ [] | slice(2, 0) | list }} {{ [1, 2] | slice(slices=1) | list }} {{ [1] | slice(-2) | list }}
{{ [1] | slice(0) | list }}
{% for key, items in people | groupby('age') %}{{ key }}:{{ items | map(attribute='name') | join('+') }} {% endfor %}{% for g in people | groupby('name') %}{{ g.grouper }}{{ g.list | length }}{{ g[0] }}{{ g['list'][0].age }} {% endfor %}{{ words | groupby('nope', default='z') }}
{{ people | groupby('tags.x', default=0) | map(attribute='grouper') | list }} {{ ['b', 'A', 'a', 'B'] | groupby(0) }} {{ ['b', 'A', 'a', 'B'] | groupby(0, case_sensitive=true) | map('first') | list }} {{ [] | groupby('x') }} {{ ([['k', 1], ['k', 2], ['j', 3]] | groupby(0))[0].list }} {{ (people | groupby('age') | first) == (9, [people[1]]) }}
{{ people | groupby('tags') }}
{{ people | groupby('nope') }}
{{ 'foo bar baz qux' | truncate(9) }}|{{ 'foo bar baz qux' | truncate(9, true) }}|{{ 'foo bar baz qux' | truncate(11) }}|{{ 'foo bar baz qux' | truncate(11, false, '...', 0) }}|{{ 'foo bar baz qux' | truncate(9, end='…', leeway=0) }}|{{ unicode | truncate(8, true, '', 0) }}|{{ 'abcdefghij' | truncate(5, leeway=0) }}|{{ 'a' | truncate }}|{{ nope | truncate(3) }}|{{ '' | truncate(0, leeway=0, end='') }}
{{ 'foo bar baz qux' | truncate(10) }}|{{ 'foo bar baz quxx' | truncate(10) }}|{{ 'xx a-b-cd' | wordwrap(7) }}|{{ 'xx a-b-c1' | wordwrap(7) }}|{{ 'xx ab-c-d' | wordwrap(6) }}
{{ 'abc' | truncate(2) }}
{{ 'abcdefghijklmn' | truncate(5, leeway=-1) }}
{{ nope | truncate(5, leeway=-1) }}
{{ 5 | truncate(3) }}
{{ 'the quick brown fox jumps' | wordwrap(10) }}|{{ 'the quick brown fox' | wordwrap(10, wrapstring=' / ') }}|{{ 'supercalifragilistic word' | wordwrap(8) }}|{{ 'supercalifragilistic word' | wordwrap(8, false) }}|{{ 'a well-known half-baked x-ray' | wordwrap(8) }}|{{ 'a well-known half-baked' | wordwrap(8, break_on_hyphens=false) }}|{{ 'one two\n\nthree  four\n' | wordwrap(5) }}
{{ '  lead and   trail   ' | wordwrap(6) }}|{{ 'dash--between words -- and---more' | wordwrap(7) }}|{{ 'a-b-c-d-e 1-2-3 ab-cd-ef' | wordwrap(4) }}|{{ 'é-ß Straße-öde \u00a0x' | wordwrap(5) }}|{{ '----------' | wordwrap(3) }}|{{ 'aaa bbbbbbbb' | wordwrap(3) }}|{{ 'aaaa-bbbb' | wordwrap(6, break_long_words=true) }}|{{ '' | wordwrap }}|{{ 'x' * 170 | wordwrap }}
{{ 'it\'s "quoted"--yes, e.g. this-one\'s (well-done) --option -x a\tb  c' | wordwrap(9) }}|{{ 'ab-cd' | wordwrap(3) }}|{{ '-ab --cd ab-- ab-1 1-ab' | wordwrap(3) }}|{{ 'hello world' | wordwrap(1) }}|{{ 'abc   def' | wordwrap(4) }}|{{ 'abc  defghi' | wordwrap(4, true, '<>') }}
{{ 'a' | wordwrap(0) }}
{{ none | wordwrap }}
[{{ 'ab' | center(7) }}] [{{ 'abc' | center(8) }}] [{{ 'abc' | center(2) }}] [{{ 5 | center(4) }}] [{{ 'é' | center(width=3) }}] {{ ('x' | center) | length }} [{{ 'ab'.center(5, '*') }}] [{{ 'a'.ljust(3) }}] [{{ 'a'.rjust(3, '0') }}] [{{ 'abc'.center(6, 'é') }}] {{ 'abab'.rindex('b') }} {{ '12'.isdecimal() }} {{ '½'.isnumeric() }} {{ 'é'.isascii() }} {{ ''.isascii() }}
{{ 'a'.center(5, 'xy') }}
{{ 'a'.rindex('b') }}
{{ 1 | filesizeformat }} {{ 0 | filesizeformat }} {{ 999 | filesizeformat }} {{ 1000 | filesizeformat }} {{ 1234567 | filesizeformat }} {{ 1024 | filesizeformat(true) }} {{ 1e30 | filesizeformat }} {{ 5e24 | filesizeformat(binary=true) }} {{ '2048' | filesizeformat }} {{ -3.7 | filesizeformat }} {{ 1.5 | filesizeformat }} {{ true | filesizeformat }} {{ 999999 | filesizeformat }}
{{ 'x' | filesizeformat }}
{{ none | filesizeformat }}
{{ 'a b/c?d=é&~' | urlencode }} {{ dict.items() | urlencode }} {{ [['a', 1]] | map('list') | urlencode }} {{ {'a b': 'c/d', 'é': 1} | urlencode }} {{ [('x', 'y z'), ['q', none]] | urlencode }} {{ 5 | urlencode }} {{ none | urlencode }} {{ nope | urlencode }}| {{ '' | urlencode }}|
{{ [1] | urlencode }}
{{ {'class': 'a "b"', 'id': none, 'n': 5, 'x': nope, 'l': [1, '<']} | xmlattr }}|{{ {} | xmlattr }}|{{ {'a': ''} | xmlattr(false) }}|{{ {'a&b': 1} | xmlattr(autospace=true) }}
{{ {'a b': 1} | xmlattr }}
{{ [1] | xmlattr }}
{{ html | escape }} {{ html | forceescape }} {{ 5 | e }} {{ [html[:3]] | e }}
{% autoescape false %}{{ html }}{% set inner = 1 %}{{ inner }}{% endautoescape %}{{ inner is defined }}
{% for p in [{'n': 1, 'c': [{'n': 2, 'c': [{'n': 3, 'c': []}]}, {'n': 4, 'c': []}]}] recursive %}<{{ p.n }}{{ loop.depth }}{{ loop.depth0 }}{{ loop.index }}{{ loop.last }}{% if p.c %}{{ loop(p.c) }}{% endif %}>{% endfor %}
{% for p in [[1, [2]], 'x'] recursive %}{% if p is string %}{{ p }}{% elif p is iterable %}({{ loop(p) }}){% else %}{{ p }},{% endif %}{% else %}none{% endfor %}{% for p in [1] recursive %}{{ loop([]) }}{% else %}empty{% endfor %}{% for p in [1, 2, [3, 4]] if p != 2 recursive %}{{ loop(p) if p is sequence else p }}{% endfor %}
{% for a in [[1, 2], [3]] recursive %}{% set outer = loop %}{% if a is number %}{{ a }}{% else %}{% for b in a %}{{ outer([b]) }}{{ loop.depth }}{% endfor %}{% endif %}{% endfor %}
{% for a in [1] %}{{ loop([2]) }}{% endfor %}
{{ dict[:1] }}
{{ no[:1] }}
{{ n[1:] }}
{{ nope[1:] }}
{% if words | select('equalto', 'zzz') %}yes{% else %}no{% endif %} {% if [] | reverse %}t{% endif %}{% if {} | items %}t{% endif %}{% if [] | unique %}t{% endif %}{% if [] | batch(1) %}t{% endif %}{% if {}.keys() %}t{% else %}f{% endif %}{% if dict.items() %}t{% endif %}
{% set g = words | map('upper') %}{% for x in g %}{{ x }}{{ loop.length }}{{ loop.last }}{% endfor %}-{% for x in g %}{{ x }}{% endfor %}{{ g | list }}{{ g is iterable }}{{ g is sequence }}{{ g is string }}
{% set g = words | map('upper') %}{{ g | first }}{{ 'FIG' in g }}{{ g | join }}{{ (words | map('upper'))[0] is undefined }} {{ g == g }} {{ words | map('length') | sum }} {{ words | map('upper') | sort }} {{ words | select('string') | map('upper') | reject('equalto', 'FIG') | join('|') }} {{ ['x'] + words | unique | list }}
{{ words | map('upper') | length }}
{{ words | map('upper') | last }}
{{ words | unique | length }}
{{ dict | items | length }}
{{ list | reverse | length }}
{{ (list | reverse)[0] is undefined }} {{ list | reverse | join }} {{ words | map('upper') | reverse | length }} {{ list | reverse | first }}
{{ words | map('upper') | tojson }}
{{ words | map('upper') + ['x'] }}
{{ (words | map('upper'))[1:] }}
{{ dict.items() | length }} {{ dict.keys() | last }} {{ dict.values() | first }} {{ dict.keys() is sequence }} {{ dict.items()[0] is undefined }} {{ 'b' in dict.keys() }} {{ dict.keys() == ['b'] }} {% set v = dict.keys() %}{{ v | join }}{{ v | join }} {{ dict.items() | map('first') | list }} {% for k, v in dict.items() | sort %}{{ k }}{% endfor %}
{{ dict.items() }} {{ dict.keys() }} {{ [dict.values()] }} {{ {}.keys() }} {{ dict.keys() | string | length }}
{{ dict.items() | tojson }}
{{ dict.keys() + [1] }}
{% set ns = namespace(g=[1, 2] | map('string')) %}{{ ns.g | join }}{{ ns.g | join }}|{% set l = [words | map('upper')] %}{{ l | length }}{{ l[0] | join }}
{% macro t(x) %}{{ x }}{% endmacro %}{% set l = [] %}{% set l = l + [t] %}{% set l = l + [t] %}{% for f in l %}{{ f(loop.index) }}{% endfor %}{% set d = {'f': t} %}{{ d.f(3) }}{{ d['f'](*[4]) }}{{ (l | first)(5) }}
{{ 'abcabc'.find('c', 3) }} {{ 'abcabc'.find('c', -2) }} {{ 'abc'.find('', 3) }} {{ 'abc'.find('', 4) }} {{ 'abcabc'.count('a', 1) }} {{ 'abc'.count('', 1) }} {{ 'abc'.count('', 9) }} {{ 'abc'.startswith('b', 1) }} {{ 'abc'.startswith('', 4) }} {{ 'abc'.endswith('b', 0, 2) }} {{ 'abcabc'.index('a', 1) }} {{ 'abcabc'.rfind('a', 0, 2) }} {{ 'éaéa'.rindex('a', none, 3) }} {{ 'éaéa'.find('a', 2) }}
{{ 'abc'.index('a', 1) }}
{{ lines.splitlines(true) }} {{ lines.splitlines(keepends=true) }} {{ lines.splitlines(false) }}
{{ html | safe + '<' + name }} {{ '<' + (html | safe) }} {{ '<' ~ (html | safe) }} {{ ('<' | e) + '<' }} {{ '<' | safe | e }} {{ '<' | safe | forceescape }} {{ ('<' | safe) * 2 + '>' }} {{ ('a<b' | safe)[1] + '<' }} {{ ('a<b' | safe)[::-1] + '<' }} {{ ['<' | safe, '<'] }} {{ '<' | safe is escaped }} {{ '<' is escaped }}
{{ ('<%s%r%d>' | safe) % ('<', '&', 3) }} {{ '<%s' | safe | format('<' | safe) }} {{ ('{}<{x}' | safe).format('<', x='&') }} {{ ('<a' | safe).replace('a', '>') }} {{ ('<' | safe).join(['&', 'b' | safe, 1]) }} {{ ('< a<' | safe).split()[1] + '<' }} {{ ('<a=<' | safe).partition('=')[2] + '<' }} {{ ('<a' | safe).upper() + '<' }} {{ ('<a' | safe).find('a') }}
{{ ' <' | safe | trim + '<' }} {{ '<a' | safe | upper + '<' }} {{ '<a' | safe | title + '<' }} {{ '<a' | safe | capitalize + '<' }} {{ '<a' | safe | replace('a', '<') + '<' }} {{ '<a\nb' | safe | indent + '<' }} {{ '<a' | safe | string + '<' }} {{ '<a' | safe | reverse + '<' }} {{ '<a' | safe | first + '<' }} {{ ['<' | safe, '<'] | join('<') + '<' }} {{ '<a' | safe | center(4) + '<' }} {{ '<aaaaaaaaaaaa' | safe | truncate(5, end='<') + '<' }} {{ '<a b' | safe | wordwrap(2) + '<' }} {{ ('<' | safe) | default('x') + '<' }}
{% set s = '<' | safe %}{{ s + '<' }}{% set b %}<{{ s }}{% endset %}{{ b + '<' }}{% macro m(x) %}{{ x }}{% endmacro %}{{ m(s) + '<' }}{{ m(s + '<') }}{{ [s, '<'] | map('safe') | map('e') | join }}{{ {'a': s} | tojson }}{{ {'a': s, 'b': '<'} | xmlattr }}{{ s == '<' }}{{ s in '<<' }}{{ none | safe + '<' }}{{ 5 | e + '<' }}
{{ ('<' | safe) + 1 }}
{{ -0.0 }} {{ [-0.0, -1.5] | tojson }} {{ - (0.0) }} {{ +1.5 }}
{% macro f(a, b=1) %}{% endmacro %}{{ f.name }} {{ f.arguments | join(',') }} {{ f.arguments }} {{ f.x }} {{ nope is callable }} {{ f is callable }} {{ name is callable }}
""".strip("\n").split("\n")


def joined(lines):
    """A line that ends with a backslash goes on in the next."""
    out = []
    for line in lines:
        if out and out[-1].endswith("\\") and not out[-1].endswith("\\\\"):
            out[-1] += "\n" + line
        else:
            out.append(line)
    return [line.replace("<NL>", "\n") for line in out]


PIECES = joined(PIECES)
