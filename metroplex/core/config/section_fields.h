// Internal to this module: helpers that build a section's field list. Other modules use fields.h.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "config/choice.h"
#include "config/fields.h"

namespace metroplex::config {

class FieldList {
 public:
  explicit FieldList(std::string section) : section_(std::move(section)) {}

  template <class T>
  void operator()(const char* name, T& member, const char* help, Limits limits) {
    list_.push_back(Field{section_, name, Member(&member), help, std::move(limits)});
  }
  template <class E>
  void operator()(const char* name, Choice<E>& member, const char* help, Limits) {
    const ChoiceMember choice{&member, [](const void* of) { return static_cast<const Choice<E>*>(of)->text(); },
                              [](void* of, const std::string& text) {
                                const std::optional<E> value = value_of<E>(text);
                                if (value) *static_cast<Choice<E>*>(of) = *value;
                                return value.has_value();
                              }};
    list_.push_back(Field{section_, name, choice, help, one_of(words_of<E>())});
  }
  std::vector<Field> take() { return std::move(list_); }

 private:
  std::string section_;
  std::vector<Field> list_;
};

void visit(Run& run, FieldList& field);
void visit(Model& model, FieldList& field);
void visit(Peft& peft, FieldList& field);
void visit(Parallel& parallel, FieldList& field);
void visit(Optim& optim, FieldList& field);
void visit(Precision& precision, FieldList& field);
void visit(Memory& memory, FieldList& field);
void visit(Data& data, FieldList& field);
void visit(Checkpoint& checkpoint, FieldList& field);
void visit(Train& train, FieldList& field);

}  // namespace metroplex::config
