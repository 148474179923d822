// Chat templates against recorded results of jinja2 and transformers (tests/vectors/chat, by
// tests/transformers/chat_vectors.py), and rejected templates.
#include "text/chat_template.h"

#include <gtest/gtest.h>

#include <fstream>

#include "text/support.h"

namespace metroplex::text::chat_template_test {
namespace {

using Json = nlohmann::ordered_json;
using testing::catch_error;
using testing::TemporaryFolder;

const std::string kVectors = "tests/vectors/chat/";

Json vectors(const std::string& name) {
  std::ifstream stream(kVectors + name);
  return Json::parse(stream);
}

// The text, or null if it is rejected.
Json render_chat(const std::string& source, const Json& variables, int64_t now) {
  try {
    const jinja::Template parsed(source, "template");
    return parsed.render(jinja::from_json(variables).dict(), now).text;
  } catch (const base::Error&) { return nullptr; }
}

TEST(ChatTemplates, PiecesOfJinjaAreAsJinjaHasThem) {
  const Json file = vectors("pieces.json");
  int refused = 0;
  for (const Json& piece : file["cases"]) {
    EXPECT_EQ(render_chat(piece["template"], file["variables"], file["now"]), piece["text"]) << piece["template"];
    refused += piece["text"].is_null();
  }
  EXPECT_GE(file["cases"].size(), 246u);
  EXPECT_GE(refused, 100);
}

TEST(ChatTemplates, OfEveryFamilyAreAsTransformersRendersThem) {
  const Json file = vectors("renderings.json");
  std::map<std::string, int> texts;
  for (const Json& one : file["cases"]) {
    Json messages = file["conversations"][one["conversation"].get<std::string>()];
    const std::string name = one["template"];
    if (messages.empty()) {
      EXPECT_TRUE(one["text"].is_null()) << name;
      EXPECT_FALSE(catch_error([&] { chat_from_json(messages); }).empty());
      continue;
    }
    messages = chat_from_json(messages).messages;
    Json variables = {
        {"messages", messages}, {"tools", nullptr}, {"documents", nullptr}, {"add_generation_prompt", false}};
    variables.update(file["special"]);
    variables.update(file["extras"][one["extra"].get<std::string>()]);
    EXPECT_EQ(render_chat(file["templates"][name], variables, file["now"]), one["text"])
        << name << " " << one["conversation"] << " " << one["extra"];
    texts[name] += !one["text"].is_null();
  }
  EXPECT_EQ(texts.size(), 12u);
  for (const auto& [name, count] : texts) EXPECT_GE(count, 40) << name;
}

TEST(ChatTemplates, TokensAndMasksAreThoseOfTransformers) {
  const Json file = vectors("tokens.json");
  std::map<std::string, std::unique_ptr<Tokenizer>> tokenizers;
  int learned = 0;
  for (const Json& one : file["cases"]) {
    SpecialNames names;
    names.bos = one["special"]["bos_token"].get<std::string>();
    names.eos = one["special"]["eos_token"].get<std::string>();
    auto& tokenizer = tokenizers[one["tokenizer"]];
    if (!tokenizer)
      tokenizer =
          load_tokenizer("", "tests/vectors/tokenizers/" + one["tokenizer"].get<std::string>() + "/tokenizer.json");
    const ChatTemplate chat_template(file["templates"][one["template"].get<std::string>()].get<std::string>(),
                                     "template", names);
    const Chat chat = chat_from_json(file["conversations"][one["conversation"].get<std::string>()]);
    const ChatTokens tokens = chat_tokens(*tokenizer, chat_template.learned_texts(chat, Learned::all)[0]);
    EXPECT_EQ(Json(tokens.ids), one["ids"]) << one["tokenizer"] << one["template"] << one["conversation"];
    EXPECT_EQ(Json(tokens.learned), one["mask"]) << one["tokenizer"] << one["template"] << one["conversation"];
    learned += static_cast<int>(std::count(tokens.learned.begin(), tokens.learned.end(), 1));
  }
  EXPECT_GE(file["cases"].size(), 54u);
  EXPECT_GE(learned, 500);
}

Chat make_chat(const char* text) { return chat_from_json(Json::parse(text)); }

constexpr const char* kTwoTurns = R"([{"role": "user", "content": "a"}, {"role": "assistant", "content": "bb"},
  {"role": "user", "content": "c"}, {"role": "assistant", "content": "dd"}])";
constexpr const char* kPlain =
    "{% for m in messages %}<{{ m.role[0] }}>{{ m.content }}.{% endfor %}{% if add_generation_prompt %}<a>{% endif "
    "%}";

std::vector<std::string> pieces(const ChatText& chat) {
  std::vector<std::string> out;
  for (const auto& [begin, end] : chat.learned) out.push_back(chat.text.substr(begin, end - begin));
  return out;
}

TEST(ChatTemplates, WithoutGenerationBlocksTheTurnsAreFoundByRenderingPrefixes) {
  const ChatTemplate plain(kPlain, "plain", {});
  const ChatText all = plain.learned_texts(make_chat(kTwoTurns), Learned::all)[0];
  EXPECT_EQ(all.text, "<u>a.<a>bb.<u>c.<a>dd.");
  EXPECT_EQ(pieces(all), (std::vector<std::string>{"bb.", "dd."}));
  EXPECT_EQ(pieces(plain.learned_texts(make_chat(kTwoTurns), Learned::last)[0]), std::vector<std::string>{"dd."});
  // A template that shortens earlier turns: they match no part of the text; the last turn does.
  const ChatTemplate rewrites(
      "{% for m in messages %}<{{ m.role[0] }}>{{ m.content if loop.last else m.content[0] }}.{% endfor %}"
      "{% if add_generation_prompt %}<a>{% endif %}",
      "rewrites", {});
  const std::string error = catch_error([&] { rewrites.learned_texts(make_chat(kTwoTurns), Learned::all); });
  EXPECT_NE(error.find("message 2"), std::string::npos) << error;
  EXPECT_NE(error.find("generation"), std::string::npos) << error;
  EXPECT_NE(error.find("--learn each"), std::string::npos) << error;
  EXPECT_EQ(pieces(rewrites.learned_texts(make_chat(kTwoTurns), Learned::last)[0]), std::vector<std::string>{"dd."});
}

TEST(ChatTemplates, AreFoundInADirectoryAsTransformersLooksForThem) {
  const TemporaryFolder folder;
  EXPECT_FALSE(find_chat_template(folder.path()).has_value());
  folder.write("tokenizer_config.json", R"({"bos_token": "<s>", "eos_token": {"content": "</s>"}, "chat_template":
    [{"name": "default", "template": "{{ bos_token }}d{{ eos_token }}{{ more }}"}, {"name": "tool_use", "template": "t{{ tools | length }}"}]})");
  auto found = find_chat_template(folder.path());
  ASSERT_TRUE(found.has_value());
  found->set_variable("more", 5);
  Chat chat = make_chat(kTwoTurns);
  EXPECT_EQ(found->text(chat, false), "<s>d</s>5");
  chat.tools = Json::array({1, 2});
  EXPECT_EQ(found->text(chat, false), "t2");
  folder.write("chat_template.jinja", "from the file {{ bos_token }}");
  EXPECT_EQ(find_chat_template(folder.path())->text(chat, false), "from the file <s>");
}

TEST(ChatTemplates, ChatsComeInSeveralSpellings) {
  const Chat shared = make_chat(
      R"({"conversations": [{"from": "system", "value": "s"}, {"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}]})");
  EXPECT_EQ(ChatTemplate(kPlain, "plain", {}).text(shared, false), "<s>s.<u>a.<a>b.");
  for (const char* wrong :
       {"{}", "[]", "3", R"({"messages": 1})", R"([{"content": "a"}])", R"({"conversations": [{"value": "a"}]})"}) {
    EXPECT_NE(catch_error([&] { make_chat(wrong); }).find("[text]"), std::string::npos) << wrong;
  }
}

TEST(ChatTemplates, WhatTheyLackIsNamedWithItsLine) {
  const std::pair<const char*, const char*> cases[] = {
      {"a\n{{ x | urlize }}", "line 2: the filter 'urlize' is not supported"},
      {"{{ [1] | random }}", "line 1: the filter 'random' is not supported"},
      {"a\n\n{% include 'b' %}", "line 3: {% include %} is not supported"},
      {"{% for a in [1] %}{{ loop([]) }}{% endfor %}", "line 1: loop() is called in a loop that is not marked"},
      {"{% autoescape true %}{% endautoescape %}", "line 1: {% autoescape %} accepts only false"},
      {"{{ f(*x, 1) }}", "line 1: a positional argument cannot follow a named argument, '*' or '**'"},
      {"{% if x %}\n{% endfor %}", "line 2: {% endfor %} is not expected here"},
      {"\n{% if x %}\n", "line 2: {% if %} has no end tag"},
      {"{{ x is nice }}", "line 1: the test 'is nice' is not supported"},
      {"{{ 'abc'.encode() }}", "line 1: 'str object' has no attribute 'encode', but it is called"},
      {"{{ raise_exception('no ' ~ 1) }}", "line 1: the template refuses this chat: no 1"},
      {"{{ messages[9].role }}", "line 1: there is no item 9 of 4, so it has no 'role'"},
      {"\n{{ nope.role }}", "line 2: 'nope' is undefined"},
      {"{{ messages.append(1) }}", "line 1: 'append' would change a list"},
  };
  for (const auto& [source, wanted] : cases) {
    const std::string error = catch_error(
        [&, source = source] { ChatTemplate(source, "file.jinja", {}).text(make_chat(kTwoTurns), false); });
    EXPECT_NE(error.find(std::string("file.jinja, ") + wanted), std::string::npos) << source << "\n" << error;
  }
}

// Each of them would run or grow without end.
TEST(ChatTemplates, NoTemplateRunsOrGrowsWithoutEnd) {
  std::string deep(2000, '('), sum = "1", nots;
  for (int i = 0; i < 2000; ++i) sum += "+1", nots += "not ";
  const std::string sources[] = {
      "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
      "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
      "{% macro m() %}{{ m() }}{{ m() }}{% endmacro %}{{ m() }}",
      "{% set ns = namespace(x='xx') %}{% for i in range(999) %}{% set ns.x = ns.x + ns.x %}{% endfor %}",
      "{% set ns = namespace(x=[1]) %}{% for i in range(999) %}{% set ns.x = ns.x + ns.x %}{% endfor %}",
      "{% set ns = namespace(x=[1]) %}{% for i in range(999) %}{% set ns.x = [ns.x] %}{% endfor %}",
      "{% set ns = namespace(x=[1]) %}{% for i in range(90) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}{{ ns.x }}",
      "{% set ns = namespace() %}{% set ns.x = ns %}",
      "{{ 'x' * 999999999999 }}",
      "{{ [1] * 999999999999 }}",
      "{{ range(1000000) }}",
      "{{ " + deep,
      "{{ " + sum + " }}",
      "{{ " + nots + "x }}",
      "{{ 9223372036854775807 + 1 }}",
      "{{ 10 ** 100 }}",
      "{% for a in [1] recursive %}{{ loop([1]) }}{% endfor %}",
      "{{ 'x' | center(999999999999) }}",
      "{{ [1] | slice(1152921504606846976) | list }}",
      "{{ [1] | batch(1152921504606846976, 'x') | list }}",
      "{% set ns = namespace(x=[1]) %}{% for i in range(999) %}{% set ns.x = ns.x | map('string') %}{% set ns.x = "
      "[ns.x] %}"
      "{% set ns.x = [ns.x, ns.x] | batch(1) %}{% endfor %}",
      "{% macro m() %}{% endmacro %}{% set ns = namespace() %}{% set ns.x = [m] %}",
      "{% macro m() %}{% endmacro %}{% set ns = namespace(x=[[m]]) %}",
      "{{ '%9999999999d' % 1 }}"};
  const Chat chat = make_chat(kTwoTurns);
  for (const std::string& source : sources) {
    const std::string error = catch_error([&] {
      jinja::Limits limits;
      limits.steps = 2'000'000;
      const jinja::Template parsed(source, "t");
      parsed.render({}, 0, limits);
    });
    EXPECT_NE(error.find("t, line 1: "), std::string::npos) << source.substr(0, 80) << "\n" << error;
  }
}

// An operation whose output or work exceeds the limit of a template is rejected before it runs.
TEST(ChatTemplates, EveryOperationIsPaidForBeforeItIsMade) {
  const std::string sources[] = {"{% set y = ('a'*10000).replace('', 'b'*10000) %}",
                                 "{% set y = ('a'*10000)|replace('a', 'b'*10000) %}",
                                 "{% set y = ('a'*2000000)|list %}",
                                 "{% set y = ('a'*2000000)|first %}",
                                 "{% set y = ('a '*1000000).split() %}",
                                 "{% set y = ('a '*1000000).rsplit() %}",
                                 "{% set y = ('a\n'*1000000).splitlines() %}",
                                 "{% for c in 'a'*2000000 %}{% endfor %}",
                                 "{% set x = ['a'*1000]*1000 %}{% set y = ('b'*100000).join(x) %}",
                                 "{% set x = ['a'*1000]*1000 %}{% set y = x|join('b'*100000) %}",
                                 "{% set y = ('\n'*10000)|indent('a'*10000, true, true) %}",
                                 "{% set y = [[[[1]]]]|tojson(indent='a'*4000000) %}",
                                 "{% set y = [1, 2, 3, 4]|tojson(separators=['a'*2000000, '']) %}",
                                 "{% set s = 'a'*1000000 %}{% set y = ('%s'*9) % (s, s, s, s, s, s, s, s, s) %}",
                                 "{% set y = ('{0}'*1000).format('a'*100000) %}",
                                 "{% set y = ('a'*1000000).strip('b'*1000000 ~ 'a') %}",
                                 "{% set y = (('a'*1000 ~ ' ')*1000).split()|sort %}",
                                 "{% set y = ('a'*4000000)[::-1] %}",
                                 "{% set y = ('a'*4000000)|wordcount %}",
                                 "{% set y = ('a'*6000000)|upper %}",
                                 "{% set y = ('<'*3000000)|e %}",
                                 "{% set y = ('<'*3000000)|forceescape %}",
                                 "{% set y = ('<'*3000000)|urlencode %}",
                                 "{% set y = ('a '*200000)|wordwrap %}",
                                 "{% set y = ('a\n'*1000)|wordwrap(1, wrapstring='b'*10000) %}",
                                 "{% set y = ('a'*200000)|batch(1) %}",
                                 "{% set y = [1]|slice(200000) %}",
                                 "{% set y = [1]|batch(200000, 1) %}",
                                 "{% set y = 'a'|center(16000000) %}",
                                 "{% set y = ('a'*2000000).ljust(4000000).rjust(8000000) %}",
                                 "{% set y = 'a'*3000000 + 'a'*3000000 %}",
                                 "{% set y = ['a'*4000000, 'a'*4000000] %}"};
  for (const std::string& source : sources) {
    jinja::Limits limits;
    limits.steps = 2'000'000;
    const jinja::Template parsed(source, "t");
    const std::string error = catch_error([&] { parsed.render({}, 0, limits); });
    EXPECT_NE(error.find("takes more than 2000000 steps"), std::string::npos) << source << "\n" << error;
  }
}

// Substrings of more than 32 bytes use another search algorithm.
TEST(ChatTemplates, LongPartsAreFoundWhereTheShortAre) {
  const Json variables = Json::parse(R"({"messages": []})");
  const auto shows = [&](const std::string& source) { return render_chat(source, variables, 0); };
  const std::string set = "{% set p = 'ab'*20 ~ 'c' %}{% set s = 'x' ~ 'ab'*3 ~ p ~ 'y' ~ p ~ 'z' %}";
  EXPECT_EQ(shows(set + "{{ s.find(p) }} {{ s.rfind(p) }} {{ s.count(p) }} {{ p in s }} {{ s.find(p ~ 'q') }}"),
            "7 49 2 True -1");
  EXPECT_EQ(
      shows(set + "{{ s.split(p) }} {{ s.rsplit(p, 1)|last }} {{ s.replace(p, '-') }} {{ s.rpartition(p)[2] }}"),
      "['xababab', 'y', 'z'] z xababab-y-z z");
  EXPECT_EQ(shows("{{ 'a  b \u00e9\u2003d '.rsplit(none, 2) }} {{ ' a b'.rsplit(none, 1) }} {{ "
                  "'xa\u00e9x'.strip('x\u00e9') }}"),
            "['a  b', '\xc3\xa9', 'd'] [' a', 'b'] a");
  EXPECT_EQ(
      shows("{{ 'a\u00e9b\u20acc'[1:4] }} {{ 'a\u00e9b\u20acc'[-2] }} {{ 'abc'[5:] }}|{{ 'a\u00e9b\u20acc'[::-2] }}"),
      "\xc3\xa9"
      "b\xe2\x82\xac \xe2\x82\xac |cba");
}

// A search that takes the product of both lengths would run for hours.
TEST(ChatTemplates, SearchesAreLinearInTextsThatRepeatThemselves) {
  const std::string set = "{% set s = 'a'*8000000 %}{% set p = 'a'*4000000 %}";
  const auto shows = [&](const std::string& source) { return render_chat(set + source, Json::object(), 0); };
  EXPECT_EQ(shows("{{ s.find(p ~ 'b') }} {{ s.rfind('b' ~ p) }} {{ (p ~ 'b') in s }}"), "-1 -1 False");
  EXPECT_EQ(shows("{{ s.count(p ~ 'b') }} {{ s.split(p ~ 'b')|length }} {{ s.count(p) }}"), "0 1 2");
}

TEST(ChatTemplates, JsonOfUsersIsBoundedAndSaysWhereItEnds) {
  const std::string deep = R"({"messages":)" + std::string(100000, '[') + std::string(100000, ']') + "}";
  const std::string brackets = std::string(60000, '[') + std::string(60000, ']');
  EXPECT_NE(catch_error([&] { parse_chat(deep); }).find("nested deeper than 120 levels"), std::string::npos);
  ChatTemplate plain(kPlain, "plain", {});
  const auto refusal = [&](const std::string& variable) {
    return catch_error([&] { plain.set_variable(variable); });
  };
  EXPECT_NE(refusal("x=" + brackets).find("nested deeper than 120 levels"), std::string::npos);
  EXPECT_NE(
      catch_error([&] { parse_chat(R"({"messages": [{"role": "user", "con)"); }).find("too early, after byte 35"),
      std::string::npos)
      << catch_error([&] { parse_chat(R"({"messages": [{"role": "user", "con)"); });
  EXPECT_NE(catch_error([&] { parse_chat("\x1f\x8b\x08"); }).find("at byte 1; it is compressed with gzip"),
            std::string::npos);
  for (const char* name : {"messages", "add_generation_prompt", "bos_token", "tools"})
    EXPECT_NE(refusal(std::string(name) + "=1").find("choose another name"), std::string::npos) << name;
  for (const char* name : {"a b", "1a", "a-b", "\xc3\xa9"})
    EXPECT_NE(refusal(std::string(name) + "=1").find("not a valid variable name"), std::string::npos) << name;
  EXPECT_EQ(refusal("_date2=[1"), "");
}

TEST(ChatTemplates, AMessageWithoutATextIsNamedWhereATemplateFails) {
  const ChatTemplate adds("{% for m in messages %}{{ m.content + '.' }}{% endfor %}", "adds", {});
  const auto refusal = [&](const char* second) {
    return catch_error([&] {
      adds.text(
          make_chat(
              (R"([{"role": "user", "content": "a"}, {"role": "assistant")" + std::string(second) + "}]").c_str()),
          false);
    });
  };
  const std::string parts = refusal(R"(, "content": [{"type": "text", "text": "b"}])");
  EXPECT_NE(parts.find("message 2, with the role assistant, has a list of parts as its content"), std::string::npos)
      << parts;
  EXPECT_NE(refusal(R"(, "content": null)").find("message 2, with the role assistant, has no content"),
            std::string::npos);
  EXPECT_NE(refusal("").find("message 2, with the role assistant, has no content"), std::string::npos);
  const std::string texts =
      catch_error([&] { ChatTemplate("{{ messages[9].role }}", "t", {}).text(make_chat(kTwoTurns), false); });
  EXPECT_EQ(texts.find("with the role"), std::string::npos) << texts;
}

TEST(ChatTemplates, ATokenThatHoldsSomeOfATurnIsLearned) {
  const auto gpt2 = load_tokenizer("", "tests/vectors/tokenizers/gpt2/tokenizer.json");
  const auto bytes = load_tokenizer("bytes", "");
  const ChatText chat{"Hello world\xc3\xa9\n\nend", {{3, 8}, {11, 13}}};
  const ChatTokens tokens = chat_tokens(*gpt2, chat);
  size_t at = 0;
  for (size_t i = 0; i < tokens.ids.size(); ++i) {
    std::vector<int32_t> upto(tokens.ids.begin(), tokens.ids.begin() + static_cast<std::ptrdiff_t>(i) + 1);
    const size_t end =
        i + 1 == tokens.ids.size() ? chat.text.size() : std::min(gpt2->decode(upto).size(), chat.text.size());
    const bool overlaps = (at < 8 && end > 3) || (at < 13 && end > 11);
    if (gpt2->decode(upto).find("\xef\xbf\xbd") == std::string::npos) {
      EXPECT_EQ(tokens.learned[i] != 0, overlaps) << i;
    }
    at = end;
  }
  // One that begins before the learned range and one that ends after it.
  const auto qwen2 = load_tokenizer("", "tests/vectors/tokenizers/qwen2/tokenizer.json");
  const ChatTokens inside = chat_tokens(*qwen2, {"<|im_start|>a<|im_end|>", {{3, 5}, {15, 16}}});
  EXPECT_EQ(inside.learned, (std::vector<uint8_t>{1, 0, 1}));
  const ChatTokens of_bytes = chat_tokens(*bytes, chat);
  ASSERT_EQ(of_bytes.learned.size(), chat.text.size());
  for (size_t i = 0; i < chat.text.size(); ++i)
    EXPECT_EQ(of_bytes.learned[i] != 0, (i >= 3 && i < 8) || (i >= 11 && i < 13)) << i;
}

TEST(ChatTemplates, EveryTokenizerLocatesTurns) {
  for (const std::string& folder : testing::vector_folders()) {
    const std::string path = folder.find('/') == std::string::npos ? "tests/vectors/tokenizers/" + folder : folder;
    const auto tokenizer = load_tokenizer("", path);
    const ChatText chat{"user: What  is it?\nassistant: A cafe\xcc\x81, 12 apples.\nuser: ok\n", {{19, 51}}};
    const ChatTokens tokens = chat_tokens(*tokenizer, chat);
    std::vector<int32_t> learned;
    for (size_t i = 0; i < tokens.ids.size(); ++i) {
      if (tokens.learned[i]) learned.push_back(tokens.ids[i]);
    }
    const std::string text = tokenizer->decode(learned);
    EXPECT_NE(text.find("A caf"), std::string::npos) << path << ": " << text;
    EXPECT_NE(text.find(", 12 apples."), std::string::npos) << path << ": " << text;
    EXPECT_EQ(text.find("What"), std::string::npos) << path << ": " << text;
    EXPECT_EQ(text.find("ok"), std::string::npos) << path << ": " << text;
  }
}

}  // namespace
}  // namespace metroplex::text::chat_template_test
