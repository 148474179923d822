// Bash functions that a trial defines before a launch script: conditions and "case" on output of programs that the
// trial does not start. Trial 0 evaluates the text of the mark. Trial 1 takes another branch at each such decision.
// Each further trial takes one other branch ($metroplex_only, a key of trial 0).
#pragma once

namespace metroplex::megatron {

// Records: a mark, "?" and a key mean that a trial can take another branch. A mark, "~" and a command mean that
// the other branch cannot be taken.
inline constexpr const char* kLaunchBranches = R"BASH(
metroplex_branches=
# Succeeds, with the number of the branch in metroplex_pick, if this trial takes another branch of a decision.
metroplex_other_branch() {  # EXPANDED_TEXT COMMAND COUNT
  local mpx_mark=@not@run@${1#*@not@run@} mpx_key=${metroplex_file-}:${metroplex_line-}:$2
  mpx_key=${mpx_key//47x@not@run@/@not@run@}  # metroplex_vary_mark
  mpx_key=${mpx_key//@x83/@}
  for ((metroplex_pick = 0; metroplex_pick < $3; metroplex_pick++)); do
    [[ $metroplex_trial == 1 || $metroplex_only == "$mpx_key:$metroplex_pick" ]] && return 0
    [[ $metroplex_trial == 0 && -z $metroplex_only && $metroplex_branches != *"<$mpx_key:$metroplex_pick>"* ]] ||
      continue
    metroplex_branches+="<$mpx_key:$metroplex_pick>"
    metroplex_record "${mpx_mark%%[[:space:]]*}" '?' "$mpx_key:$metroplex_pick"
  done
  return 1
}
[() { metroplex_test "[" "$@"; }
test() { metroplex_test test "$@"; }
# The programs of another source tree need not be on this machine.
metroplex_test() {
  case "${*:2:3}" in
    "-"[efrs]" "*.py*) return 0 ;;
    "! -"[efrs]" "*.py) return 1 ;;
    "-"[efrsx]" "/*nvidia-smi*) return 0 ;;
    "-"[efrsx]" "/*-smi*) metroplex_assumed_status "${3##*/}" 1 0 1; return ;;
    "-"[efrsx]" "/usr/bin/*) [[ $metroplex_trial == 1 ]] && return 0 ;;  # metroplex_which
  esac
  [[ $* == *@not@run@* ]] || { builtin "$@"; return; }
  if metroplex_other_branch "$*" "$*" 1; then ! builtin "$@" 2> /dev/null; else builtin "$@" 2> /dev/null; fi
}
# The status of a program that a trial does not start. A trial for it exists only where the script may read the status:
# its line, or the next three, have an operator or "$?".
metroplex_ended() {  # TOOL
  local mpx_lines=() mpx_text='||' mpx_line=${metroplex_line:-1}
  [[ ${metroplex_source-} == "$0" || -f ${metroplex_source-} ]] &&
    mapfile -t -s $((mpx_line > 3 ? mpx_line - 3 : 0)) -n 7 mpx_lines < "$metroplex_source"
  [[ ${#mpx_lines[@]} == 0 ]] || mpx_text=" ${mpx_lines[*]}"
  [[ $mpx_text == *@('&&'|'||'|'$?'|'${?'|[[:space:]\;]@(if|elif|while|until|!)[[:space:]])* ]] || return 0
  ! metroplex_other_branch "@not@run@${1//[!A-Za-z0-9_+-]/_}@${metroplex_line-}@${metroplex_file//[!A-Za-z0-9_.+-]/_}@" \
    "status of $1" 1
}
# Prepares "[[" and "case". Returns 1 if bash is to skip the command, which then succeeds. A subshell evaluates the
# command, for $((n++)) has an effect.
metroplex_branch() {  # the arguments of the script or function
  local mpx_names mpx_command=$BASH_COMMAND mpx_text=$BASH_COMMAND mpx_operators='[\"'"'"'()|&<>;\\]' mpx_patterns=(x)
  if [[ $mpx_text == *'$('* ]]; then
    mpx_text=$(eval "builtin printf %s \"${mpx_text//\"/ }\"" 2> /dev/null)
  else
    eval "mpx_text=\"${mpx_text//$mpx_operators/ }\"" 2> /dev/null
  fi
  metroplex_unknown_names
  [[ ${#mpx_names[@]} == 0 || $mpx_text == *@not@run@* ]] || mpx_text=${!mpx_names}
  [[ $mpx_text == *@not@run@* ]] || return 0
  mpx_text=@not@run@${mpx_text#*@not@run@}
  [[ $mpx_command == 'case '* ]] && metroplex_patterns "${BASH_SOURCE[2]}" "$metroplex_line"
  metroplex_other_branch "$mpx_text" "$mpx_command" "${#mpx_patterns[@]}" || return 0
  if [[ $mpx_command == 'case '* ]]; then
    metroplex_assume_value "$metroplex_pick" "$@" || metroplex_record "${mpx_text%%[[:space:]]*}" '~' "$mpx_command"
  elif (eval "$mpx_command") 2> /dev/null; then
    metroplex_assume_false "$@" || metroplex_record "${mpx_text%%[[:space:]]*}" '~' "$mpx_command"
  else
    eval "$mpx_command" 2> /dev/null
    return 1
  fi
  return 0
}
# The names of the variables in the command that hold a mark, in mpx_names. ${NAME+x} does not depend on it.
metroplex_unknown_names() {
  local mpx_rest=$mpx_command mpx_name
  mpx_names=()
  while [[ $mpx_rest =~ \$\{?([A-Za-z_][A-Za-z0-9_]*)(.*)$ ]]; do
    mpx_name=${BASH_REMATCH[1]} mpx_rest=${BASH_REMATCH[2]}
    [[ ${!mpx_name} == *@not@run@* && $mpx_rest != +* ]] && mpx_names+=("$mpx_name")
  done
}
# Gives the variables of a "case" the value of a pattern, or the programs in it such output.
metroplex_assume_value() {  # INDEX of mpx_patterns
  local mpx_name
  for mpx_name in "${mpx_names[@]}"; do
    builtin printf -v "$mpx_name" %s "${mpx_patterns[$1]}" 2> /dev/null && return 0
  done
  [[ $mpx_command == *'$('* ]] || return
  metroplex_assumed=${mpx_patterns[$1]} metroplex_assumed_in=$BASH_SUBSHELL
}
# Searches a value for the variables or programs in a "[[" with which it is false.
metroplex_assume_false() {
  local mpx_name mpx_old mpx_value mpx_values=()
  mpx_value=${mpx_command//[\"\'*?()^\\]/}
  IFS=$' \t\n' read -r -d '' -a mpx_values <<< "$mpx_value"
  for mpx_value in "" "${mpx_values[@]}"; do
    mpx_value=${mpx_value%'$'}
    [[ $mpx_value =~ ^\$\{?([A-Za-z0-9_]+)\}?$ ]] && mpx_value=${!BASH_REMATCH[1]}
    [[ $mpx_value == *@not@run@* || $mpx_value == '$'* ]] && continue
    for mpx_name in "${mpx_names[@]}"; do
      mpx_old=${!mpx_name}
      builtin printf -v "$mpx_name" %s "$mpx_value" 2> /dev/null || continue
      (eval "$mpx_command") 2> /dev/null || return 0
      builtin printf -v "$mpx_name" %s "$mpx_old"
    done
    [[ $mpx_command == *'$('* ]] || continue
    metroplex_assumed=$mpx_value metroplex_assumed_in=$BASH_SUBSHELL
    (eval "$mpx_command") 2> /dev/null || return 0
    unset metroplex_assumed
  done
  return 1
}
# A text for each pattern of the "case" in LINE of FILE, in mpx_patterns.
metroplex_patterns() {  # FILE LINE
  local mpx_line mpx_number=0 mpx_body= mpx_pattern mpx_set
  [[ -f $1 ]] || return
  mpx_patterns=()
  while IFS= read -r mpx_line || [[ -n $mpx_line ]]; do
    ((++mpx_number < $2)) && continue
    mpx_body+=${mpx_line%%[[:space:]]#*}$'\n'
    [[ $mpx_line =~ (^|[[:space:];])esac ]] && break
  done < "$1"
  mpx_body=${mpx_body#*[[:space:]]in[[:space:]]}
  while [[ $mpx_body == *')'* ]]; do
    IFS='|' read -r -d '' -a mpx_set <<< "${mpx_body%%')'*}"
    for mpx_pattern in "${mpx_set[@]}"; do
      mpx_pattern=${mpx_pattern//[\"\'*(]/}
      mpx_pattern=${mpx_pattern#"${mpx_pattern%%[![:space:]]*}"}
      mpx_pattern=${mpx_pattern%"${mpx_pattern##*[![:space:]]}"}
      while [[ $mpx_pattern =~ ^([^[]*)\[([^]])[^]]*\](.*)$ ]]; do
        mpx_pattern=${BASH_REMATCH[1]}${BASH_REMATCH[2]}${BASH_REMATCH[3]}
      done
      [[ -n $mpx_pattern && $mpx_pattern != *[[:space:]]* ]] && mpx_patterns+=("$mpx_pattern")
    done
    mpx_body=${mpx_body#*')'}
    [[ $mpx_body == *';;'* ]] || break
    mpx_body=${mpx_body#*';;'}
  done
}
)BASH";

}  // namespace metroplex::megatron
