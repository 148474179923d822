// Chats as datasets store them: converted, rejected, unlearned and reported chats.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>

#include "text/chat_report.h"
#include "text/chat_template.h"
#include "text/end_of_turn.h"
#include "text/support.h"

namespace metroplex::text::chat_data_test {
namespace {

using Json = nlohmann::ordered_json;
using testing::catch_error;
using testing::TemporaryFolder;

constexpr const char* kPlain =
    "{% for m in messages %}<{{ m.role }}>{{ m.content }};{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}";
constexpr const char* kBlocks =
    "{% for m in messages %}<{{ m.role }}>{% if m.role == 'assistant' %}{% generation %}{{ m.content }};"
    "{% endgeneration %}{% else %}{{ m.content }};{% endif %}{% endfor %}";
constexpr const char* kTools =
    "{% if tools %}{% for t in tools %}[{{ t.name }}]{% endfor %}{% endif %}{% for m in messages %}<{{ m.role }}>"
    "{{ m.content }}{% for c in m.tool_calls or [] %}({{ c.function.name }} {{ c.function.arguments.x }}){% endfor "
    "%};"
    "{% endfor %}";

std::string rendered(const char* source, const char* chat) {
  return ChatTemplate(source, "template", {}).text(parse_chat(chat), false);
}

std::vector<std::string> learned(const char* source, const std::string& chat, Learned which = Learned::all) {
  const ChatText text = ChatTemplate(source, "template", {}).learned_texts(parse_chat(chat), which)[0];
  std::vector<std::string> out;
  for (const auto& [begin, end] : text.learned) out.push_back(text.text.substr(begin, end - begin));
  return out;
}

std::string refusal(const std::string& chat) {
  return catch_error([&] { parse_chat(chat); });
}

TEST(ChatData, NullKeysAreDropped) {
  EXPECT_EQ(rendered(kPlain, R"([{"role": "user", "content": null}, {"role": "assistant", "content": null,
    "tool_calls": null, "name": null}])"),
            "<user>;<assistant>;");
  const Chat chat = parse_chat(R"([{"role": "user", "content": "a", "reasoning": null, "x": {"y": null}}])");
  EXPECT_EQ(chat.messages[0].dump(), R"({"role":"user","content":"a","x":{"y":null}})");
}

TEST(ChatData, ToolsMayBeJsonText) {
  const char* list = R"({"tools": [{"name": "f"}], "messages": [{"role": "user", "content": "a"}]})";
  const char* text = R"({"tools": "[{\"name\": \"f\"}]", "messages": [{"role": "user", "content": "a"}]})";
  EXPECT_EQ(rendered(kTools, list), "[f]<user>a;");
  EXPECT_EQ(rendered(kTools, text), "[f]<user>a;");
  EXPECT_TRUE(parse_chat(list).notes.empty());
  EXPECT_EQ(parse_chat(text).notes.size(), 1u);
  EXPECT_TRUE(parse_chat(R"({"tools": " ", "messages": [{"role": "user", "content": "a"}]})").tools.is_null());
  for (const char* wrong : {R"("no JSON")", R"("{}")", R"("[1]")", R"({"name": "f"})", "[1]", "3", R"(["f"])"}) {
    const std::string error =
        refusal(std::string(R"({"messages": [{"role": "user", "content": "a"}], "tools": )") + wrong + "}");
    EXPECT_NE(error.find("\"tools\" = "), std::string::npos) << wrong << error;
  }
  EXPECT_EQ(rendered(kTools, R"([{"role": "assistant", "content": "",
    "tool_calls": "[{\"function\": {\"name\": \"g\", \"arguments\": {\"x\": 2}}}]"}])"),
            "<assistant>(g 2);");
  EXPECT_NE(refusal(R"([{"role": "assistant", "content": "", "tool_calls": "g"}])").find("\"tool_calls\" = "),
            std::string::npos);
}

TEST(ChatData, SystemTextIsTheFirstMessage) {
  for (const char* chat : {R"({"system": "s", "conversations": [{"from": "human", "value": "a"}]})",
                           R"({"system": "s", "messages": [{"role": "user", "content": "a"}]})"}) {
    EXPECT_EQ(rendered(kPlain, chat), "<system>s;<user>a;");
    EXPECT_EQ(parse_chat(chat).notes.size(), 1u);
  }
  EXPECT_EQ(rendered(kPlain, R"({"system": "", "messages": [{"role": "user", "content": "a"}]})"), "<user>a;");
  EXPECT_NE(refusal(R"({"system": "s", "messages": [{"role": "system", "content": "t"}]})").find("\"system\" = "),
            std::string::npos);
  EXPECT_NE(refusal(R"({"system": 3, "messages": [{"role": "user", "content": "t"}]})").find("must be a string"),
            std::string::npos);
}

// Two answers; the key excludes the first.
std::string two_answers(const std::string& key) {
  return R"([{"role": "user", "content": "a"}, {"role": "assistant", "content": "b", )" + key +
         R"(}, {"role": "user", "content": "c"}, {"role": "assistant", "content": "d", "weight": 1}])";
}

TEST(ChatData, MessagesOfWeight0AreNotLearned) {
  for (const char* source : {kPlain, kBlocks}) {
    for (const char* key : {R"("weight": 0)", R"("weight": 0.0)", R"("train": false)", R"("training": false)",
                            R"("loss": 0)", R"("masked": true)"}) {
      EXPECT_EQ(learned(source, two_answers(key)), std::vector<std::string>{"d;"}) << key;
    }
    for (const char* key : {R"("weight": 1)", R"("weight": null)", R"("train": true)", R"("masked": 0)"})
      EXPECT_EQ(learned(source, two_answers(key)).size(), 2u) << key;
    EXPECT_TRUE(learned(source, R"([{"role": "assistant", "content": "b", "weight": 0}])", Learned::last).empty());
  }
  EXPECT_EQ(learned(kPlain, R"({"conversations": [{"from": "gpt", "value": "b", "train": false}]})").size(), 0u);
  for (const char* key : {R"("weight": 0.5)", R"("weight": 2)", R"("train": "no")"})
    EXPECT_NE(refusal(two_answers(key)).find("must be 0, 1, true or false"), std::string::npos) << key;
  EXPECT_FALSE(parse_chat(two_answers(R"("weight": 0)")).messages[1].contains("weight"));
}

TEST(ChatData, TemplateSeesVariablesOfTheLine) {
  const char* source = "{{ mode }}{% for m in messages %}{{ m.content }}{% endfor %}";
  ChatTemplate shared(source, "template", {});
  shared.set_variable("mode", "run");
  EXPECT_EQ(shared.text(parse_chat(R"([{"role": "user", "content": "a"}])"), false), "runa");
  EXPECT_EQ(shared.text(parse_chat(R"({"chat_template_kwargs": {"mode": "line"},
    "messages": [{"role": "user", "content": "a"}]})"),
                        false),
            "linea");
  for (const char* wrong : {"3", R"({"tools": []})", R"({"a b": 1})"}) {
    EXPECT_FALSE(refusal(std::string(R"({"messages": [{"role": "user", "content": "a"}], "chat_template_kwargs": )") +
                         wrong + "}")
                     .empty())
        << wrong;
  }
}

TEST(ChatData, ShareGptCallsOfFunctions) {
  EXPECT_EQ(rendered(kTools, R"({"conversations": [{"from": "human", "value": "a"},
    {"from": "function_call", "value": "{\"name\": \"f\", \"arguments\": {\"x\": 1}}"},
    {"from": "observation", "value": "r"}, {"from": "gpt", "value": "b"}]})"),
            "<user>a;<assistant>(f 1);<tool>r;<assistant>b;");
  EXPECT_NE(refusal(R"({"conversations": [{"from": "function_call", "value": "f 1"}]})").find("function_call"),
            std::string::npos);
}

TEST(ChatData, UnusedColumnsMayBeNull) {
  EXPECT_EQ(rendered(kPlain, R"({"messages": null, "tools": null, "conversations": [{"from": "human", "value": "a",
    "role": null}]})"),
            "<user>a;");
  EXPECT_EQ(
      rendered(kPlain, R"({"conversations": null, "messages": [{"role": "user", "content": "a", "from": null}]})"),
      "<user>a;");
}

TEST(ChatData, TurnsOfShareGptInAnyList) {
  for (const char* chat :
       {R"([{"from": "human", "value": "a"}])", R"({"messages": [{"from": "human", "value": "a"}]})"})
    EXPECT_EQ(rendered(kPlain, chat), "<user>a;");
  EXPECT_NE(refusal(R"({"system": "s", "conversations": [{"from": "system", "value": "t"}]})").find("\"system\" = "),
            std::string::npos);
}

TEST(ChatData, ArgumentsMayBeJsonText) {
  const char* line = R"([{"role": "assistant", "tool_calls": [{"function": {"name": "f",
    "arguments": "{\"x\": \"\u00e9\"}"}}, {"name": "g", "arguments": "not JSON"}]}])";
  const char* writes_json =
      "{% for c in messages[0].tool_calls %}{{ (c.function or c).arguments | tojson }}{% endfor %}";
  const char* writes_text = "{% for c in messages[0].tool_calls %}{{ (c.function or c).arguments }}{% endfor %}";
  Chat chat = parse_chat(line);
  EXPECT_FALSE(read_arguments(chat, rendered(writes_text, line))) << "the template takes a text";
  EXPECT_TRUE(read_arguments(chat, rendered(writes_json, line)));
  EXPECT_EQ(ChatTemplate(writes_json, "template", {}).text(chat, false), "{\"x\": \"\u00e9\"}\"not JSON\"");
  EXPECT_EQ(chat.notes.size(), 1u);
}

TEST(ChatData, ArgumentsThatTheTemplateRefusesAreRead) {
  const char* line = R"([{"role": "user", "content": "a"}, {"role": "assistant", "content": "", "tool_calls":
    [{"function": {"name": "f", "arguments": "{\"x\": 1}"}}]}])";
  const char* items =
      "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% for c in m.tool_calls or [] %}"
      "{% for k, v in c.function.arguments | items %}{{ k }}={{ v }};{% endfor %}{% endfor %}{% endfor %}"
      "{% if add_generation_prompt %}<assistant>{% endif %}";
  const ChatTemplate chat_template(items, "template", {});
  Chat chat = parse_chat(line);
  const auto texts = read_learned_texts(chat_template, chat, Learned::all);
  ASSERT_EQ(texts.size(), 1u);
  EXPECT_EQ(texts[0].text, "<user>a<assistant>x=1;");
  EXPECT_EQ(chat.notes.size(), 1u);
  // A rejection for another reason stays.
  Chat plain = parse_chat(R"([{"role": "user", "content": "a"}])");
  const ChatTemplate refuses("{{ raise_exception('no') }}", "template", {});
  EXPECT_NE(catch_error([&] { read_learned_texts(refuses, plain, Learned::all); }).find("no"), std::string::npos);
  // Texts that a template writes as JSON strings.
  const ChatTemplate quotes(
      "{% for m in messages %}{% for c in m.tool_calls or [] %}{{ c.function.arguments | tojson }}{% endfor %}"
      "{% endfor %}",
      "template", {});
  Chat quoted = parse_chat(line);
  EXPECT_EQ(read_learned_texts(quotes, quoted, Learned::each)[0].text, R"({"x": 1})");
}

// Removes the reasoning of earlier turns. With {% generation %} a turn is one block or two.
constexpr const char* kStrips =
    "{% for m in messages %}<{{ m.role }}>{% if loop.last and m.reasoning_content %}<think>{{ m.reasoning_content }}"
    "</think>{% endif %}{{ m.content }};{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}";
constexpr const char* kStripsBlocks =
    "{% for m in messages %}<{{ m.role }}>{% if m.role != 'assistant' %}{{ m.content }};{% else %}"
    "{% if loop.last and m.reasoning_content %}{% generation %}<think>{{ m.reasoning_content }}</think>"
    "{% endgeneration %}{% endif %}{% generation %}{{ m.content }};{% endgeneration %}{% endif %}{% endfor %}";
constexpr const char* kThreeTurns =
    R"([{"role": "user", "content": "a"}, {"role": "assistant", "content": "b", "reasoning_content": "1"},
    {"role": "user", "content": "c"}, {"role": "assistant", "content": "d", "reasoning_content": "2", "weight": 0},
    {"role": "user", "content": "e"}, {"role": "assistant", "content": "f", "reasoning_content": "3"},
    {"role": "user", "content": "g"}])";

TEST(ChatData, EachTurnIsLearnedAtItsEnd) {
  const std::string until_b = "<user>a;<assistant><think>1</think>b;";
  const std::string until_f = "<user>a;<assistant>b;<user>c;<assistant>d;<user>e;<assistant><think>3</think>f;";
  for (const char* source : {kStrips, kStripsBlocks}) {
    const std::vector<ChatText> texts =
        ChatTemplate(source, "template", {}).learned_texts(parse_chat(kThreeTurns), Learned::each);
    ASSERT_EQ(texts.size(), 2u) << source;
    EXPECT_EQ(texts[0].text, until_b);
    EXPECT_EQ(texts[1].text, until_f);
    EXPECT_EQ(texts[0].num_messages, 2u);
    EXPECT_EQ(texts[1].num_messages, 6u);
    for (const ChatText& text : texts) {
      ASSERT_FALSE(text.learned.empty());
      EXPECT_EQ(text.learned.front().first, text.text.find("<think>")) << source;
      EXPECT_EQ(text.learned.back().second, text.text.size()) << source;
    }
  }
  EXPECT_NE(catch_error([&] { learned(kStrips, kThreeTurns); }).find("--learn each"), std::string::npos);
  // A chat without a learned turn is one text, so that it is counted.
  for (const char* chat :
       {R"([{"role": "user", "content": "a"}])",
        R"([{"role": "user", "content": "a"}, {"role": "assistant", "content": "b", "weight": 0}])"}) {
    const auto texts = ChatTemplate(kStrips, "template", {}).learned_texts(parse_chat(chat), Learned::each);
    ASSERT_EQ(texts.size(), 1u);
    EXPECT_TRUE(texts[0].learned.empty());
  }
}

// Removes reasoning before calls once an answer follows, as gpt-oss does.
constexpr const char* kStripsLater =
    "{% for m in messages %}{% set ns = namespace(answer=false) %}{% for n in messages[loop.index:] %}"
    "{% if n.role == 'assistant' and not n.tool_calls %}{% set ns.answer = true %}{% endif %}{% endfor %}"
    "<{{ m.role }}>{% if m.reasoning_content and not ns.answer %}({{ m.reasoning_content }})<{{ m.role }}>{% endif %}"
    "{% for c in m.tool_calls or [] %}[{{ c.function.name }}]{% endfor %}{{ m.content }};{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}";

TEST(ChatData, EachTurnFollowsThePromptThatTheModelSees) {
  const char* chat =
      R"([{"role": "user", "content": "a"}, {"role": "assistant", "content": "", "reasoning_content": "1",
    "tool_calls": [{"function": {"name": "f", "arguments": {}}}]}, {"role": "tool", "content": "<assistant>"},
    {"role": "assistant", "content": "b", "reasoning_content": "2"}, {"role": "user", "content": "c"},
    {"role": "assistant", "content": "x<assistant>"}])";
  const std::string until_call = "<user>a;<assistant>(1)<assistant>[f];";
  const std::pair<std::string, std::string> wanted[] = {
      {"<user>a;<assistant>", "(1)<assistant>[f];"},
      {until_call + "<tool><assistant>;<assistant>", "(2)<assistant>b;"},
      {"<user>a;<assistant>[f];<tool><assistant>;<assistant>(2)<assistant>b;<user>c;<assistant>", "x<assistant>;"}};
  const auto texts = ChatTemplate(kStripsLater, "template", {}).learned_texts(parse_chat(chat), Learned::each);
  ASSERT_EQ(texts.size(), 3u);
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(texts[i].text, wanted[i].first + wanted[i].second);
    EXPECT_EQ(texts[i].learned, (std::vector<LearnedRange>{{wanted[i].first.size(), texts[i].text.size()}})) << i;
  }
  const std::string last = catch_error([&] { learned(kStripsLater, chat, Learned::last); });
  EXPECT_NE(last.find("(--learn each), or use a template"), std::string::npos) << last;
}

TEST(ChatData, TurnWithoutItsGenerationPromptIsRefused) {
  // The earlier turn has the prompt, the last one has another header.
  const char* source =
      "{% for m in messages %}<{{ 'A' if m.role == 'assistant' and loop.last else m.role }}>"
      "{{ m.content if loop.last else m.content[0] }};{% endfor %}{% if add_generation_prompt %}<assistant>{% endif "
      "%}";
  const char* chat = R"([{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"},
    {"role": "user", "content": "cc"}, {"role": "assistant", "content": "dd"}])";
  const ChatTemplate chat_template(source, "template", {});
  const auto refusal = [&] {
    return catch_error([&] { chat_template.learned_texts(parse_chat(chat), Learned::each); });
  };
  EXPECT_NE(refusal().find("message 4"), std::string::npos) << refusal();
  EXPECT_NE(refusal().find("so the learned text is unknown; use a template with"), std::string::npos) << refusal();
}

TEST(ChatData, LastTurnMayHaveSeveralBlocks) {
  const char* chat = R"([{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"},
    {"role": "user", "content": "c"}, {"role": "assistant", "content": "d", "reasoning_content": "2"}])";
  EXPECT_EQ(learned(kStripsBlocks, chat, Learned::last), (std::vector<std::string>{"<think>2</think>", "d;"}));
}

TEST(ChatData, ReportCountsMessagesOfRenderedTurnsOnly) {
  const auto tokenizer = load_tokenizer("", "tests/vectors/tokenizers/qwen2");
  const ChatTemplate chat_template(kStrips, "template", {});
  ChatReport report(chat_template, *tokenizer, {*tokenizer->token_to_id(";")});
  const Chat chat = parse_chat(kThreeTurns);
  const std::vector<ChatText> texts = chat_template.learned_texts(chat, Learned::each);
  report.add_chat(chat, texts.back());
  for (const ChatText& text : texts) {
    const ChatTokens tokens = chat_tokens(*tokenizer, text);
    report.add_turns(text, tokens, tokens.ids.size());
  }
  EXPECT_TRUE(report.lines().empty()) << report.lines()[0];
}

// Generation prompts of reasoning models open a block that finished turns lack.
TEST(ChatData, LearnsAfterTheCommonPrefixOfPromptAndTurn) {
  const char* thinks =
      "{% for m in messages %}<{{ m.role }}>{{ m.content }};{% endfor %}"
      "{% if add_generation_prompt %}<assistant><think>{% endif %}";
  const char* chat = R"([{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"},
    {"role": "user", "content": "c"}, {"role": "assistant", "content": "<b>d"}])";
  EXPECT_EQ(learned(thinks, chat), (std::vector<std::string>{"b;", "<b>d;"}));
  EXPECT_EQ(learned(thinks, chat, Learned::last), std::vector<std::string>{"<b>d;"});
  const char* trims =
      "{% for m in messages %}<{{ m.role }}>{{ m.content.split('</think>')[-1] | trim }};{% endfor %}"
      "{% if add_generation_prompt %}<assistant><think>{% endif %}";
  EXPECT_EQ(learned(trims, R"([{"role": "user", "content": "a"}, {"role": "assistant", "content": " <b>c "},
    {"role": "user", "content": "d"}, {"role": "assistant", "content": "<think>e</think>\n<i>f"}])"),
            (std::vector<std::string>{"<b>c;", "<i>f;"}));
  // A prompt that rewrites the messages before it has no common prefix with the turn.
  const char* rewrites =
      "{% for m in messages %}<{{ m.role }}>{{ m.content if not add_generation_prompt else '' }};{% endfor %}";
  EXPECT_NE(catch_error([&] { learned(rewrites, chat); }).find("differently"), std::string::npos);
}

std::vector<std::string> report_lines(const char* source, const std::vector<const char*>& chats, bool cut = false) {
  const auto tokenizer = load_tokenizer("", "tests/vectors/tokenizers/qwen2");
  const ChatTemplate chat_template(source, "template", {});
  std::vector<int32_t> ends = {*tokenizer->token_to_id("<|im_end|>")};
  ChatReport report(chat_template, *tokenizer, ends);
  for (const char* line : chats) {
    const Chat chat = parse_chat(line);
    const ChatText text = chat_template.learned_texts(chat, Learned::all)[0];
    const ChatTokens tokens = chat_tokens(*tokenizer, text);
    const auto first = std::find(tokens.learned.begin(), tokens.learned.end(), 1) - tokens.learned.begin();
    report.add_chat(chat, text);
    report.add_turns(text, tokens, cut ? static_cast<size_t>(first) + 1 : tokens.ids.size());
  }
  return report.lines();
}

bool has_line(const std::vector<std::string>& lines, const std::string& part) {
  return std::any_of(lines.begin(), lines.end(), [&](const auto& l) { return l.find(part) != std::string::npos; });
}

TEST(ChatData, ReportNamesUnusedData) {
  const char* source =
      "{% for m in messages %}{{ m.role }}{{ m.name }}{{ m.content if m.content is string else '' }}<|im_end|>\n"
      "{% endfor %}{% if add_generation_prompt %}assistant{% endif %}";
  const char* clean = R"({"id": 3, "messages": [{"role": "user", "content": "hi", "name": "x"},
    {"role": "assistant", "content": " arr "}]})";
  EXPECT_TRUE(report_lines(source, {clean}).empty());
  const char* parts = R"({"category": "c", "tools": [], "chat_template_kwargs": {"deep": 1},
    "messages": [{"role": "user", "content": "hi", "mood": "x", "thinking": "y"},
    {"role": "assistant", "content": [{"type": "text", "text": "arr"}]}]})";
  const auto lines = report_lines(source, {clean, parts, parts});
  for (const char* wanted : {"2 chats have the key \"category\"", "2 chats have messages with the key \"mood\"",
                             "2 chats have messages with the key \"thinking\"", "2 chats have tools, which",
                             "2 chats set \"deep\"", "the text of 2 messages with the role assistant"}) {
    EXPECT_TRUE(has_line(lines, wanted)) << wanted;
  }
  EXPECT_EQ(lines.size(), 6u);
}

TEST(ChatData, ReportNamesContentsThatAreNotText) {
  const char* source =
      "{% for m in messages %}{{ m.role }}{% if m.content is string %}{{ m.content }}{% elif m.content %}"
      "{% for p in m.content %}{{ p.text }}{% endfor %}{% endif %}<|im_end|>\n{% endfor %}"
      "{% if add_generation_prompt %}assistant{% endif %}";
  const auto lines =
      report_lines(source, {R"([{"role": "user", "content": [{"type": "text", "text": "hi"},
    {"type": "image_url", "image_url": {"url": "x"}}]}, {"role": "assistant", "content": "arr"}])",
                            R"([{"role": "user", "content": ["one", 2]}, {"role": "tool", "content": {"text": "zq"}},
    {"role": "user", "text": "hi"}, {"role": "assistant", "content": "arr"}])"});
  for (const char* wanted :
       {"1 chats have content parts that are not text (type \"image_url\")",
        "1 chats have content parts that are not text (type number)",
        "1 chats have messages with neither \"content\"", "the text of 1 messages with the role user",
        "the text of 1 messages with the role tool"}) {
    EXPECT_TRUE(has_line(lines, wanted)) << wanted;
  }
  EXPECT_EQ(lines.size(), 5u);
}

constexpr const char* kChatMl =
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";

TEST(ChatData, ReportNamesContentsWrittenAsPythonSource) {
  const auto lines =
      report_lines(kChatMl, {R"([{"role": "user", "content": [{"type": "text", "text": "hi"}]},
    {"role": "assistant", "content": "arr"}])",
                             R"([{"role": "user", "content": {"x": 1}}, {"role": "user", "content": ["a"]},
    {"role": "assistant", "content": "arr"}])",
                             R"([{"role": "user", "content": "[{'type'"}, {"role": "user", "content": 5},
    {"role": "assistant", "content": "arr"}])"});
  EXPECT_TRUE(
      has_line(lines, "2 chats have contents that are lists or objects, which the template writes as Python"));
  EXPECT_TRUE(has_line(lines, "1 chats have contents that are not text (type number)"));
  EXPECT_EQ(lines.size(), 2u);
}

TEST(ChatData, ReportNamesRolesThatAreNotKnown) {
  const auto lines =
      report_lines(kChatMl, {R"({"conversations": [{"from": "human", "value": "u"},
    {"from": "bing", "value": "lost"}, {"from": "bing", "value": "lost"}, {"from": "gpt", "value": "z"}]})",
                             R"([{"role": "user", "content": "a"}, {"role": "model", "content": "lost"},
    {"role": "assistant", "content": "b"}])"});
  EXPECT_TRUE(has_line(lines, "2 messages have the role bing, which is unknown"));
  EXPECT_TRUE(has_line(lines, "1 messages have the role model, which is unknown"));
  EXPECT_EQ(lines.size(), 2u);
}

TEST(ChatData, TurnMayEndWithSeveralSpecialTokens) {
  const char* chat = R"([{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}])";
  const std::string closed = kChatMl;
  EXPECT_TRUE(
      report_lines((closed + "{% if not add_generation_prompt %}<|endoftext|>{% endif %}").c_str(), {chat}).empty());
  EXPECT_TRUE(has_line(report_lines((closed + "{% if not add_generation_prompt %}more{% endif %}").c_str(), {chat}),
                       "in 1 of 1 turns the last learned token does not end the turn"));
}

// Phi-3 ends a chat with eos_token where no generation prompt is requested.
TEST(ChatData, LearnsTurnsBeforeTheClosingTextOfTheChat) {
  const std::string closes = std::string(kChatMl) + "{% if not add_generation_prompt %}<|endoftext|>{% endif %}";
  const char* chat = R"([{"role": "user", "content": "a<b"}, {"role": "assistant", "content": "b"},
    {"role": "user", "content": "c"}, {"role": "assistant", "content": "d"}])";
  EXPECT_EQ(learned(closes.c_str(), chat), (std::vector<std::string>{"b<|im_end|>\n", "d<|im_end|>\n<|endoftext|>"}));
  const char* thinks =
      "{% for m in messages %}<{{ m.role }}>{{ m.content }};{% endfor %}"
      "{% if add_generation_prompt %}<assistant><think>{% else %}<eos>{% endif %}";
  EXPECT_EQ(learned(thinks, chat), (std::vector<std::string>{"b;", "d;<eos>"}));
  // Equal answers are no closing text.
  const char* same = R"([{"role": "user", "content": "a", "reasoning_content": "1"},
    {"role": "assistant", "content": "b", "reasoning_content": "1"}, {"role": "user", "content": "c"},
    {"role": "assistant", "content": "b", "reasoning_content": "1"}])";
  EXPECT_NE(catch_error([&] { learned(kStrips, same); }).find("differently"), std::string::npos);
}

TEST(ChatData, DocumentsAreAVariableOfTheTemplate) {
  const char* source = "{% for d in documents or [] %}({{ d.text }}){% endfor %}{{ messages[0].content }}{{ x }}";
  const ChatTemplate chat_template(source, "template", {});
  const auto text = [&](const char* line) { return chat_template.text(parse_chat(line), false); };
  EXPECT_EQ(text(R"({"documents": [{"text": "D"}], "messages": [{"role": "user", "content": "a"}]})"), "(D)a");
  EXPECT_EQ(text(R"({"documents": "[{\"text\": \"D\"}]", "messages": [{"role": "user", "content": "a"}]})"), "(D)a");
  EXPECT_EQ(text(R"({"chat_template_kwargs": {"documents": [{"text": "K"}]},
    "messages": [{"role": "user", "content": "a"}]})"),
            "(K)a");
  EXPECT_EQ(text(R"({"chat_template_kwargs": "{\"x\": 1}", "messages": [{"role": "user", "content": "a"}]})"), "a1");
  EXPECT_EQ(text(R"([{"role": "user", "content": "a"}])"), "a");
  EXPECT_NE(catch_error([&] {
              text(R"({"documents": ["D"], "messages": [{"role": "user", "content": "a"}]})");
            }).find("\"documents\" = "),
            std::string::npos);
  EXPECT_TRUE(has_line(report_lines(kChatMl, {R"({"documents": [{"text": "D"}], "messages": [{"role": "user",
    "content": "a"}, {"role": "assistant", "content": "b"}]})"}),
                       "1 chats have documents, which the template does not read"));
}

TEST(ChatData, ReportCountsTurnsWithoutEnd) {
  const char* chat = R"([{"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello there"},
    {"role": "user", "content": "hi"}, {"role": "assistant", "content": "bye"}])";
  const char* ends =
      "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
      "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";
  const char* open =
      "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.role == 'assistant' %}{% generation %}{{ m.content }}"
      "{% endgeneration %}{% else %}{{ m.content }}{% endif %}<|im_end|>\n{% endfor %}";
  EXPECT_TRUE(report_lines(ends, {chat}).empty());
  EXPECT_TRUE(
      has_line(report_lines(open, {chat, chat}), "in 4 of 4 turns the last learned token does not end the turn"));
  EXPECT_TRUE(has_line(report_lines(ends, {chat}, true), "in 1 of 1 turns"));
}

TEST(ChatData, EndOfTurnOfATemplateThatIsNormalized) {
  const auto tokenizer = load_tokenizer("", "tests/vectors/tokenizers/qwen2");
  const ChatTemplate chat_template(
      "e\xcc\x81{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}", "template",
      {});
  EXPECT_EQ(end_of_turn(chat_template, *tokenizer), tokenizer->token_to_id("<|im_end|>"));
  EXPECT_EQ(end_of_turn(ChatTemplate("{{ messages[5].role }}", "t", {}), *tokenizer), std::nullopt);
}

TEST(ChatData, SeveralTemplatesInAFolder) {
  const TemporaryFolder folder;
  const Chat plain = parse_chat(R"([{"role": "user", "content": "a"}])");
  const Chat tools = parse_chat(R"({"tools": [], "messages": [{"role": "assistant", "content": "a"}]})");
  folder.write("tokenizer_config.json", R"({"chat_template": "old"})");
  std::filesystem::create_directory(folder.path() + "/additional_chat_templates");
  folder.write("additional_chat_templates/tool_use.jinja", "T{% generation %}x{% endgeneration %}");
  EXPECT_NE(catch_error([&] { find_chat_template(folder.path()); }).find("'default'"), std::string::npos);
  folder.write("chat_template.jinja", "D");
  const auto found = find_chat_template(folder.path());
  ASSERT_TRUE(found.has_value());
  EXPECT_EQ(found->text(plain, false), "D");
  EXPECT_EQ(found->text(tools, false), "Tx");
  // Each template has its own blocks.
  EXPECT_EQ(found->learned_texts(tools, Learned::all)[0].learned, (std::vector<LearnedRange>{{1, 2}}));
}

}  // namespace
}  // namespace metroplex::text::chat_data_test
