#include "pickle/value.h"

#include <gtest/gtest.h>

#include "support/error_of.h"

namespace metroplex::pickle::value_test {
namespace {

using namespace std::string_literals;

// Pickles below are written by hand, opcode by opcode.
class Pickled {
 public:
  explicit Pickled(std::string text) : text_(std::move(text)), document_(text_, "file.pt", 100) {}
  const Document* operator->() const { return &document_; }
  const Value& root() const { return document_.root(); }

 private:
  std::string text_;
  Document document_;
};

std::string error_text(const std::string& text) {
  return test::catch_error([&] { Document(text, "file.pt", 100); });
}

TEST(Pickle, ReadsScalars) {
  EXPECT_EQ(Pickled("\x80\x02J\xff\xff\xff\xff."s).root().integer, -1);
  EXPECT_EQ(Pickled("\x80\x04K\xff."s).root().integer, 255);
  EXPECT_EQ(Pickled("M\x01\x02."s).root().integer, 513);
  EXPECT_EQ(Pickled("\x8a\x00."s).root().integer, 0);
  EXPECT_EQ(Pickled("\x8a\x01\xff."s).root().integer, -1);
  EXPECT_EQ(Pickled("\x8a\x05\x00\x00\x00\x00\x01."s).root().integer, int64_t{1} << 32);
  EXPECT_EQ(Pickled("\x8a\x09\x00\x00\x00\x00\x00\x00\x00\x00\x01."s).root().kind, Kind::large_integer);
  EXPECT_EQ(Pickled("G\x3f\xf8\x00\x00\x00\x00\x00\x00."s).root().real, 1.5);
  EXPECT_EQ(Pickled("N."s).root().kind, Kind::none);
  EXPECT_EQ(Pickled("\x88."s).root().integer, 1);
  EXPECT_EQ(Pickled("\x8c\x02hi."s).root().text, "hi");
  EXPECT_EQ(Pickled("C\x02\x00\x01."s).root().text, "\x00\x01"s);
}

TEST(Pickle, ReadsContainers) {
  const Pickled list("(K\x01K\x02l."s),
      grown(
          "]q\x00(K\x01K\x02"
          "e."s),
      tuple("K\x01K\x02\x86."s);
  for (const Pickled* value : {&list, &grown, &tuple})
    EXPECT_EQ((*value)->integers(value->root(), "x"), (std::vector<int64_t>{1, 2}));
  const Pickled dict(
      "}(\x8c\x01"
      "aK\x01\x8c\x01"
      "bK\x02\x8c\x01"
      "aK\x03u."s);
  EXPECT_EQ(dict->get(dict.root(), "a").integer, 3);
  EXPECT_EQ(dict->get(dict.root(), "b").integer, 2);
  EXPECT_EQ(dict->find(dict.root(), "c"), nullptr);
}

// A class that would run a command when unpickled is a name here.
TEST(Pickle, KeepsCallsInert) {
  const Pickled call("cos\nsystem\n\x8c\x02ls\x85R."s);
  EXPECT_TRUE(call.root().is_object("os.system"));
  EXPECT_EQ(call.root().arguments->items.at(0)->text, "ls");
}

TEST(Pickle, ReadsObjects) {
  const Pickled object(
      "\x8c\x08"
      "argparse\x8c\x09Namespace\x93)\x81}\x8c\x01nK\x07sb."s);
  EXPECT_TRUE(object.root().is_object("argparse.Namespace"));
  EXPECT_EQ(object->get(object.root(), "n").integer, 7);
  const Pickled ordered("ccollections\nOrderedDict\n)R\x8c\x01nK\x07s."s);
  EXPECT_EQ(ordered->get(ordered.root(), "n").integer, 7);
  const Pickled size("ctorch\nSize\nK\x03K\x04\x86\x85R."s);
  EXPECT_EQ(size->integers(size.root(), "x"), (std::vector<int64_t>{3, 4}));
}

TEST(Pickle, RecallsValues) {
  const Pickled pair("]\x94h\x00\x86"s.insert(0, "K\x05"s) + "."s);
  EXPECT_EQ(pair.root().items.at(0), pair.root().items.at(1));
}

// A list that contains itself: no copy, no recursion at destruction.
TEST(Pickle, AcceptsCycles) {
  const Pickled cycle(
      "]q\x01h\x01"
      "a."s);
  EXPECT_EQ(cycle.root().items.at(0), &cycle.root());
}

TEST(Pickle, AcceptsDeepNesting) {
  std::string text = "N";
  for (int depth = 0; depth < 1000000; ++depth) text += '\x85';
  EXPECT_EQ(Pickled(text + ".").root().kind, Kind::tuple);
}

const std::string kFix = "; copy the file again, or save it with torch.save";

TEST(Pickle, NamesFileByteAndProblem) {
  EXPECT_EQ(error_text("K\x01"s), "[pickle] 'file.pt', byte 102: the value has 1 bytes, but only 0 follow" + kFix);
  EXPECT_EQ(error_text("\x80\x01N."s),
            "[pickle] 'file.pt', byte 100: protocol 1 is not supported; expected 2 to 5" + kFix);
  EXPECT_NE(error_text("X\xff\xff\xff\x7f."s).find("has 2147483647 bytes, but only 1 follow"), std::string::npos);
  EXPECT_NE(error_text("h\x05."s).find("value 5 is used before it is stored"), std::string::npos);
  EXPECT_NE(error_text("t."s).find("there is no mark"), std::string::npos);
  EXPECT_NE(error_text("(K\x01"
                       "d."s)
                .find("a key without a value"),
            std::string::npos);
  EXPECT_NE(error_text("K\x01)R."s).find("a call of an integer"), std::string::npos);
  EXPECT_NE(error_text("I1\n."s).find("opcode 73 is not supported"), std::string::npos);
  EXPECT_NE(error_text("\x8c\x01"
                       "a\x94\x8c\x01"
                       "b\x93\x8c\x01"
                       "a."s +
                       "")
                .size(),
            1U);
  EXPECT_NE(error_text("K\x01(K\x02\x86."s).find("no value for this opcode"), std::string::npos);
  EXPECT_NE(error_text("(0K\x01K\x02"
                       "00."s)
                .find("no value for this opcode"),
            std::string::npos);
}

// A short opcode must not copy a long name.
TEST(Pickle, BoundsTheLengthOfNames) {
  const std::string name(5000, 'x');
  EXPECT_NE(error_text("X\x88\x13\x00\x00"s + name + "\x94h\x00\x93."s).find("a name is too long"),
            std::string::npos);
}

TEST(Pickle, ReportsTypesOfFields) {
  const Pickled dict("}\x8c\x01nK\x07s."s);
  EXPECT_EQ(test::catch_error([&] { dict->text(dict->get(dict.root(), "n"), "the title"); }),
            "[pickle] 'file.pt', byte 104: the title is an integer, not a str" + kFix);
  EXPECT_EQ(test::catch_error([&] { dict->get(dict.root(), "m"); }),
            "[pickle] 'file.pt', byte 100: there is no 'm'" + kFix);
}

}  // namespace
}  // namespace metroplex::pickle::value_test
