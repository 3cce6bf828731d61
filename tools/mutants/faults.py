"""The faults that run.py plants: one changed place each, and the tests that ought to notice."""

from __future__ import annotations

from dataclasses import dataclass

NATIVE = "ext/ngramspec/_native/"
PACKAGE = "ngramspec/"
DRAFTERS = (
    "tests/golden",
    "tests/native/map/test_vectors.py",
    "tests/native/cache/test_vectors.py",
    "tests/native/mod/test_vectors.py",
    "tests/native/drafter/test_state_machines.py",
    "tests/native/drafter/test_contract.py",
)
SUFFIX = (
    "tests/native/suffix/test_drafter.py",
    "tests/native/suffix/test_pool.py",
    "tests/native/suffix/test_machine.py",
    "tests/native/suffix/test_tree_machine.py",
)
COSTS = (
    "tests/native/policy/test_costs.py",
    "tests/native/policy/test_machine.py",
    "tests/native/policy/test_auto.py",
)
PLAN = (
    "tests/engine/test_schedule.py",
    "tests/engine/test_engine.py",
    "tests/engine/test_engine_fairness.py",
    "tests/engine/test_engine_cost.py",
)
FILES = (
    "tests/formats/test_refusals.py",
    "tests/formats/test_damage.py",
    "tests/formats/test_statistics.py",
    "tests/build/test_build.py",
)
VERIFY = (
    "tests/native/engine/test_verify.py",
    "tests/verify/test_arrays.py",
    "tests/test_tree.py",
)
LLAMA = (
    "tests/adapters/llama_cpp/test_model.py",
    "tests/adapters/llama_cpp/test_drop_in.py",
    "tests/adapters/llama_cpp/test_drop_in_sharing.py",
)
ENGINE = (
    "tests/engine/test_engine.py",
    "tests/engine/test_engine_cache.py",
    "tests/engine/test_engine_races.py",
    "tests/engine/test_engine_hostile.py",
)


SHIFT = ("tests/engine/test_context_shift.py",)
SAVING = ("tests/engine/test_saving.py", "tests/formats/test_slot_file.py")
REASONING = ("tests/engine/test_reasoning_budget.py",)
GRAMMAR = (
    "tests/native/grammar",
    "tests/grammar",
    "tests/adapters/llama_cpp/test_chain_sampler_rules.py",
)


@dataclass(frozen=True)
class Fault:
    """One planted fault.

    name: What is wrong then, unique.
    path: The file, from the root of the tree.
    old, new: A text that the file has once, and what takes its place.
    tests: Test files or folders that are run.
    """

    name: str
    path: str
    old: str
    new: str
    tests: tuple[str, ...]


FAULTS = (
    # -- drafters ------------------------------------------------------------------------------
    Fault("a source of a chain drafts as far as the longest one", NATIVE + "drafter/driver.pyx",
          "    if limit > c.max_draft:\n        limit = c.max_draft\n", "", (*DRAFTERS, "tests/native/drafter/test_bounds.py")),
    Fault("simple drafts with one occurrence too few", NATIVE + "map/drafter.pyx",
          "index_has_hits(x, h, latest, s.min_hits)", "index_has_hits(x, h, latest, s.min_hits - 1)", DRAFTERS),
    Fault("map forgets a key's cap at its next occurrence", NATIVE + "map/drafter.pyx",
          "s.caps[previous] if previous >= 0 else", "s.caps[previous] if previous > i else", DRAFTERS),
    Fault("map halves a right cap", NATIVE + "map/drafter.pyx", "        cap = 2 * cap\n", "        cap = cap // 2 + 1\n", DRAFTERS),
    Fault("map votes beyond its window", NATIVE + "map/drafter.pyx", "total < m.window", "total <= m.window", DRAFTERS),
    Fault("map drafts without half of the votes", NATIVE + "map/drafter.pyx",
          "2 * values[best].count >= total", "3 * values[best].count >= total", DRAFTERS),
    Fault("mod leaves the last tokens of a prompt out of the pool", NATIVE + "mod/drafter.pyx",
          "range(h.len - AHEAD if h.len - AHEAD > first else first, h.len)", "range(h.len - 1 if h.len - 1 > first else first, h.len)", DRAFTERS),
    Fault("mod drafts fewer than n_min", NATIVE + "mod/drafter.pyx", "    if i < needed:\n", "    if i < needed - 1:\n", DRAFTERS),
    Fault("mod drops the wrong token from its hash", NATIVE + "mod/drafter.pyx",
          "leaving[i] if i < m.n_match else out[i - m.n_match]", "leaving[i] if i <= m.n_match else out[i - m.n_match]", DRAFTERS),
    Fault("cache takes a follower below its threshold", NATIVE + "cache/drafter.pyx",
          "if g.total >= t.min_sample and 100", "if g.total >= t.min_sample - 1 and 100", DRAFTERS),
    Fault("cache asks the shortest n-gram first", NATIVE + "cache/drafter.pyx",
          "    size = longest\n    while size >= k.ngram_min:\n        g = walked", "    size = min(longest, k.ngram_min)\n    while size >= k.ngram_min:\n        g = walked", DRAFTERS),
    Fault("cache weighs followers by their rank in static", NATIVE + "cache/drafter.pyx",
          "<double>count * 100 * weight if weight > 0", "<double>count + 100 * weight if weight > 0", DRAFTERS),
    # -- suffix --------------------------------------------------------------------------------
    Fault("suffix counts the votes of the pool as its own", NATIVE + "suffix/drafter.pyx",
          "choices[k].num_pool += 1", "choices[k].num_own += 1", SUFFIX),
    Fault("suffix does not sort what was voted for", NATIVE + "suffix/drafter.pyx",
          "while k > 0 and choices[k - 1].odds < moved.odds:", "while k > 1 and choices[k - 1].odds < moved.odds:", SUFFIX),
    Fault("suffix chooses the least likely of the judged", NATIVE + "suffix/drafter.pyx",
          "if choices[k].p > choices[r.chosen].p:", "if choices[k].p < choices[r.chosen].p:", SUFFIX),
    Fault("suffix lets candidates go on that said another token", NATIVE + "suffix/drafter.pyx",
          "candidates[k].token == out[i] and (", "candidates[k].token >= 0 and (", SUFFIX),
    Fault("suffix matches its own request's text in the pool", NATIVE + "suffix/match.pyx",
          "if before < 0 or <int32_t>ngs_load32(<uint32_t*>&pool.blocks[c.position // BLOCK].stream) == w.stream:", "if before < 0:", SUFFIX),
    Fault("suffix does not go on in its own draft", NATIVE + "suffix/match.pyx",
          "else draft[c.position - h.len]", "else h.tokens[h.len - 1]", SUFFIX),
    Fault("suffix takes a prompt for output", NATIVE + "suffix/match.pyx",
          "place == PLACE_OWN and <Py_ssize_t>found[k] >= text.prompt_len", "place == PLACE_OWN", SUFFIX),
    # -- costs and lengths ---------------------------------------------------------------------
    Fault("costs believe a single slow pass", NATIVE + "policy/costs.pyx",
          "known + (seconds - known) / self.weight[tokens]", "seconds", COSTS),
    Fault("costs fill sizes beyond the last with the wrong neighbours", NATIVE + "policy/costs.pyx",
          "scale = self.outer(b, 1) if a == 0 else self.outer(a, -1)", "scale = self.outer(b, -1) if a == 0 else self.outer(a, 1)", COSTS),
    Fault("costs never forget", NATIVE + "policy/costs.pyx", "self.weight[i] *= 0.5", "self.weight[i] *= 1.0", COSTS),
    Fault("gate doubles after a wrong draft", NATIVE + "engine/gate.pyx",
          "accepted + accepted // 2 + 1", "drafted * 2", ("tests/engine/test_policy.py",)),
    Fault("gate rests no longer each time", NATIVE + "engine/gate.pyx",
          "min(<Py_ssize_t>_MAX_PAUSE, lane.pause * 2)", "lane.pause", ("tests/engine/test_policy.py",)),
    Fault("gate begins a request with what the slot did last", NATIVE + "engine/gate.pyx",
          "(<_Lanes>lanes).of(slot).begun = False", "pass", ("tests/engine/test_policy.py",)),
    # -- the engine's step ---------------------------------------------------------------------
    Fault("a plan gives the youngest prompt its room first", NATIVE + "engine/step.pyx",
          "    return slot.used\n", "    return -slot.used\n", PLAN),
    Fault("a plan lets a prompt take more than the room", NATIVE + "engine/step.pyx",
          "slot.count = min(slot.length - slot.num_past, room)", "slot.count = slot.length - slot.num_past", PLAN),
    Fault("a plan asks for logits one token early", NATIVE + "engine/step.pyx",
          "slot.num_past + i + 1 == slot.length)", "slot.num_past + i + 2 == slot.length)", PLAN),
    Fault("drafts push prompts out altogether", NATIVE + "engine/step.pyx",
          "min(prompts, self.capacity * 3 // 4)", "0", PLAN),
    Fault("a deadline is looked at for idle slots only", NATIVE + "engine/step.pyx",
          "if slot.deadline > 0.0 and slot.generation is not None:", "if slot.deadline > 0.0 and slot.generation is None:", (*PLAN, *ENGINE)),
    Fault("verification accepts the first wrong token", NATIVE + "engine/step.pyx",
          "if i < draft_len and token != draft[i]:\n            return i + 1", "if i < draft_len and token != draft[i]:\n            out[i] = draft[i]", VERIFY),
    Fault("tree rows attend to their siblings", NATIVE + "hosts/sglang.pyx",
          "above = row_of[parents[i]] if parents[i] >= 0 else 0", "above = next_row - 1", ("tests/native/hosts/test_sglang.py", "tests/adapters/sglang/test_corpus.py")),
    Fault("a batch of slots is not shortened to what pays", NATIVE + "drafter/drafter.pyx",
          "driver_shorten(&drafter.d, slot, chosen)", "pass", ("tests/native/drafter/test_offers.py", "tests/engine/test_offers.py", "tests/native/engine/test_batch.py")),
    Fault("the worse of two sources is sent", NATIVE + "drafter/drafter.pyx",
          "if source < 0 or net > top:", "if source < 0 or net < top:", ("tests/native/drafter/test_offers.py", "tests/engine/test_offers.py")),
    Fault("a request starts on a slot that holds none of its prompt", PACKAGE + "engine/schedule.py",
          "best = max(idle,", "best = min(idle,", (*PLAN, *ENGINE)),
    Fault("another namespace's cache is reused", PACKAGE + "engine/schedule.py",
          "slot.namespace != request.speculation.namespace", "False", (*ENGINE, "tests/engine/test_sharing.py")),
    Fault("the last token of a cached prompt is not read again", PACKAGE + "engine/sequences.py",
          "self.cut(slot, min(kept, size - 1))", "self.cut(slot, min(kept, size))", ENGINE),
    Fault("rejected tokens stay in the cache", PACKAGE + "engine/sequences.py",
          "kept = slot.length - slot.num_out + slot.num_accepted", "kept = slot.length", ENGINE),
    Fault("a request for a slot holds up all others", PACKAGE + "engine/queue.py",
          "                    if fitting:\n", "                    if not fitting:\n                        return None\n                    if fitting:\n", (*PLAN, *ENGINE)),
    Fault("a prediction begins one token late", PACKAGE + "engine/prediction.py",
          "np.concatenate([start, prediction, BORDER, start])", "np.concatenate([start, prediction[1:], BORDER, start])", ("tests/engine/test_prediction.py",)),
    Fault("recurrent targets get the policy that rejects freely", PACKAGE + "engine/policy.py",
          'if name == "auto" and max_rollback is None:', 'if name == "auto":', ("tests/engine/test_policy.py", "tests/engine/test_auto_policy.py", "tests/adapters/llama_cpp/test_recurrent.py")),
    # -- verification for any engine -----------------------------------------------------------
    Fault("sampled verification keeps a token of probability 0", PACKAGE + "verify/sampled.py",
          "numbers * sums < likely", "numbers * sums <= likely", (*VERIFY, "tests/verify/test_distribution.py")),
    Fault("a rejected token may be sampled again", PACKAGE + "verify/sampled.py",
          "lib.zeros_like(row), row)", "row, row)", (*VERIFY, "tests/verify/test_distribution.py")),
    Fault("rows that sum to less than 1 pass for distributions", PACKAGE + "verify/sampled.py",
          "(sums >= 1 - TOLERANCE)", "(sums >= 1 - 10 * TOLERANCE)", VERIFY),
    Fault("a tree's token does not see itself", PACKAGE + "tree.py",
          "mask[i, context + i] = True", "mask[i, context + i - 1] = True", VERIFY),
    Fault("a tree's depth counts from its root's child", PACKAGE + "tree.py",
          "depths[parent] + 1 if parent >= 0 else 0", "depths[parent] + 1 if parent > 0 else 0", VERIFY),
    # -- statistics files ----------------------------------------------------------------------
    Fault("a merge drops counts below the bound in each file", NATIVE + "files/entries.pyx",
          "m.total += <uint64_t>entry_count(s.next)", "m.total += <uint64_t>entry_count(s.next) if <uint64_t>entry_count(s.next) >= m.min_count else 0", FILES),
    Fault("a merge forgets its last pair", NATIVE + "files/entries.pyx",
          "if num + LARGEST <= room and self._m.total:", "if num and num + LARGEST <= room and self._m.total:", FILES),
    Fault("counts beyond those known are doubled", NATIVE + "files/entries.pyx",
          "more = more - less if more > less else 0", "more = more if more > less else 0", (*FILES, "tests/formats/test_saving.py", "tests/formats/test_dynamic_file.py")),
    Fault("a static lookup misses the last record of a bucket", NATIVE + "cache/static.pyx",
          "    while low < high:\n        order = _compare(", "    while low < high - 1:\n        order = _compare(", FILES),
    Fault("ids beyond the vocabulary are drafted from a file", NATIVE + "cache/static.pyx",
          "if best >= <uint32_t>c.vocab_size:", "if best > <uint32_t>c.vocab_size:", FILES),
    Fault("pruning keeps n-grams that a shorter one says as well", NATIVE + "files/image.pyx",
          "                worth = 1\n", "                worth = WHOLE\n", (*FILES, "tests/cli/test_cache.py")),
    Fault("pruning goes over the bytes it was given", NATIVE + "files/image.pyx",
          "kept_bytes + <int64_t>num_bytes <= max_bytes", "kept_bytes <= max_bytes", (*FILES, "tests/cli/test_cache.py")),
    Fault("a lookup file with stray bytes is read", PACKAGE + "formats/llama_lookup.py",
          "if len(raw) % 4:", "if len(raw) % 2:", (*FILES, "tests/adapters/llama_cpp/test_statistics_files.py")),
    # -- corpus and build ----------------------------------------------------------------------
    Fault("a full table of digests is never grown", PACKAGE + "corpus/dedup.py",
          "if self._len * DIGEST_BYTES * 4 > len(self._cells) * 3:", "if self._len * DIGEST_BYTES * 4 > len(self._cells) * 5:", ("tests/corpus",)),
    Fault("other documents are held out", PACKAGE + "corpus/dedup.py",
          "digest[-7:]", "digest[:7]", ("tests/corpus", "tests/build/test_build.py")),
    Fault("the line that reaches into a unit is read twice", PACKAGE + "corpus/documents.py",
          "source.raw.seek(offset - 1)", "source.raw.seek(offset)", ("tests/corpus",)),
    Fault("a line that is too long is read as a document", PACKAGE + "corpus/documents.py",
          "yield number, None", "yield number, line", ("tests/corpus",)),
    Fault("what is in a folder that matches matches as well", PACKAGE + "corpus/patterns.py",
          "for size in range(1, len(names) + 1):", "for size in range(len(names), len(names) + 1):", ("tests/corpus",)),
    Fault("pieces are cut in the middle of words", PACKAGE + "corpus/pieces.py",
          "return found if found > start else stop", "return stop", ("tests/corpus", "tests/tokenizers")),
    # -- tokenizers ----------------------------------------------------------------------------
    Fault("a GGUF string reaches beyond the file", PACKAGE + "tokenizers/gguf.py",
          "if num_bytes > self.size - self.position:", "if num_bytes > self.size:", ("tests/tokenizers",)),
    Fault("padding changes a fingerprint", PACKAGE + "tokenizers/fingerprint.py",
          "if entry[1] and not _is_placeholder(*entry)", "if entry[1]", ("tests/tokenizers",)),
    Fault("long runs that begin inside of a part are missed", PACKAGE + "tokenizers/llama_vocabulary.py",
          "size = MAX_RUN // 2", "size = MAX_RUN", ("tests/tokenizers",)),
    Fault("a long run is cut inside a special token", PACKAGE + "tokenizers/llama_vocabulary.py",
          "cuts = sorted(_outside(cut, spans) for cut in cuts)", "cuts = sorted(cuts)", LLAMA),
    # -- bench ---------------------------------------------------------------------------------
    Fault("a replay counts drafts beyond the end of the output", PACKAGE + "bench/walk.py",
          "return len(draft[:left]), right_prefix", "return len(draft), right_prefix", ("tests/bench", "tests/replay")),
    Fault("the speed-up leaves out steps without a draft", PACKAGE + "bench/tally.py",
          "return self.tokens * table.cost(1) / spent if spent else 1.0", "return self.tokens * table.cost(1) / (spent - self.draft_lengths[0]) if spent else 1.0", ("tests/bench",)),
    Fault("costs between two sizes are those of the larger", PACKAGE + "costs.py",
          "return max(low + (high - low) * (tokens - a) / (b - a), min(low, high) * 1e-3)", "return high", ("tests/bench", *COSTS)),
    Fault("rounds always begin with the same mode", PACKAGE + "bench/rounds.py",
          "first = number % len(modes)", "first = 0", ("tests/bench",)),
    Fault("drafters are chosen on the requests that they are judged by", PACKAGE + "bench/split.py",
          "trace.requests[-last:] if last else ()", "trace.requests[:last] if last else ()", ("tests/bench",)),
    # -- adapters ------------------------------------------------------------------------------
    Fault("a stream of ids is recognised by its length alone", PACKAGE + "adapters/llama_cpp/streams.py",
          "return bool(np.array_equal(ids[start : self.length], self.tail))", "return True", LLAMA),
    Fault("the newest stream gives way", PACKAGE + "adapters/llama_cpp/streams.py",
          "oldest = min(self._streams", "oldest = max(self._streams", LLAMA),
    Fault("SGLang's drafts count as right where siblings differ", PACKAGE + "adapters/sglang/request.py",
          "if self._parents[i] == at and self._ids[i] == token", "if self._ids[i] == token", ("tests/adapters/sglang/test_corpus.py", "tests/adapters/sglang/test_plugin.py")),
    Fault("vLLM's requests may turn drafts on but not off", PACKAGE + "adapters/vllm/request_options.py",
          'if type(own.get("speculate")) is int and own["speculate"] in (0, 1):', 'if type(own.get("speculate")) is int and own["speculate"] == 1:', ("tests/adapters/vllm/test_requests.py", "tests/adapters/vllm/test_proposer.py")),
    Fault("vLLM keeps what requests said that have gone", PACKAGE + "adapters/vllm/request_options.py",
          "if len(held) > len(present):", "if not held:", ("tests/adapters/vllm/test_requests.py", "tests/adapters/vllm/test_proposer.py")),
    # -- server --------------------------------------------------------------------------------
    Fault("half a mark at the end of a piece is content", PACKAGE + "server/chat/text.py",
          "for size in range(most, 0, -1):", "for size in range(most - 1, 0, -1):", ("tests/server/test_reasoning.py", "tests/server/test_parsers.py", "tests/server/test_call_formats.py")),
    Fault("a brace in a string ends a tool call", PACKAGE + "server/chat/calls/json_value.py",
          "_IN_STRING = Stops(('\"', \"\\\\\"))", "_IN_STRING = Stops(('\"', \"\\\\\", \"}\"))", ("tests/server/test_parsers.py", "tests/server/test_tools.py")),
    Fault("an escaped quote ends a string", PACKAGE + "server/chat/calls/json_value.py",
          "        if mark != \"\\\\\":\n", "        if True:\n", ("tests/server/test_parsers.py", "tests/server/test_tools.py")),
    Fault("adapters share a cached prompt", PACKAGE + "engine/schedule.py",
          " or slot.adapters != request.adapters", "", ("tests/engine/test_adapters.py", "tests/server/test_lora.py")),
    Fault("usage counts a prompt once per choice", PACKAGE + "server/openai/events.py",
          "generations[::choices]", "generations", ("tests/server/test_chat.py", "tests/server/test_completions.py")),
    Fault("timings count cached tokens as read", PACKAGE + "server/response/timings.py",
          "sum(t.num_prompt - t.num_cached for t in all_timings)", "sum(t.num_prompt for t in all_timings)", ("tests/server/test_native.py", "tests/server/test_chat.py", "tests/server/test_ollama_chat.py")),
    Fault("logprobs of minus infinity reach the JSON", PACKAGE + "server/response/logprobs.py",
          "return value if value > LOWEST else LOWEST", "return value", ("tests/server/test_logprobs.py", "tests/server/test_native.py")),
    # -- grammars ------------------------------------------------------------------------------
    Fault("a rule at the end leaves a stack of its own", NATIVE + "grammar/stacks.pyx",
          "            if r.kinds[place + 1] != ELEMENT_END:\n                below", "            if True:\n                below", GRAMMAR),
    Fault("a token that is asked for also goes on by its text alone", NATIVE + "grammar/stacks.pyx",
          "    s.found_end |= s.sets[beside].ends\n", "", GRAMMAR),
    Fault("what may end is forgotten with the rest", NATIVE + "grammar/stacks.pyx",
          "        fresh.found_end = s.sets[number].ends\n", "", GRAMMAR),
    Fault("equal stacks exist more than once", NATIVE + "grammar/stacks.pyx",
          "and stack.place == place and stack.below == below:", "and stack.place == place and stack.below > below:", GRAMMAR),
    Fault("a mask leaves out a second token of the same text", NATIVE + "grammar/matcher.pyx",
          "            token = t.others[token]\n", "            break\n", GRAMMAR),
    Fault("a mask goes on below what does not fit", NATIVE + "grammar/matcher.pyx",
          "            node = t.skips[node]\n", "            node += 1\n", GRAMMAR),
    Fault("nothing that a text has passed is forgotten", NATIVE + "grammar/matcher.pyx",
          "    if m.stacks.num_bytes <= m.most_bytes:\n        return True\n", "    if m.stacks.num_bytes >= 0:\n        return True\n", GRAMMAR),
    Fault("a class may begin with half of a surrogate", PACKAGE + "grammar/characters.py",
          "SURROGATES = (0xD800, 0xDFFF)", "SURROGATES = (0xD800, 0xDBFF)", GRAMMAR),
    Fault("left recursion is read", PACKAGE + "grammar/rules.py",
          "if more and groups[index] == groups[follower]:", "if more and index == follower and len(rule.links) > 9:", GRAMMAR),
    Fault("drafts have no least length where the policy chooses", NATIVE + "engine/step.pyx",
          "            if self.offers[i].chosen < slot.min_draft:\n                self.offers[i].chosen = 0\n", "", ("tests/engine/test_engine.py",)),
    Fault("penalties come first whatever the order", PACKAGE + "adapters/llama_cpp/chain.py",
          "usual = set(s.samplers[: last + 1]) <= PENALTIES", "usual = last >= -1", ("tests/adapters/llama_cpp/test_chain_sampler.py",)),
    # -- long sessions -------------------------------------------------------------------------
    Fault("session: a shift discards what is to be kept", PACKAGE + "engine/sequences.py",
          "first = max(0, min(wanted, size - SPARE))", "first = 0", SHIFT),
    Fault("session: what a shift has touched is reused", NATIVE + "engine/slot.pyx",
          "self.num_reusable = min(self.num_reusable, first)", "self.num_reusable = self.size", SHIFT),
    Fault("session: slots share cells that a shift moves", PACKAGE + "engine/sequences.py",
          "None if shifts and target.shares_copies else target.min_copy", "target.min_copy", SHIFT),
    Fault("session: a draft model does not follow a shift", PACKAGE + "engine/stepper.py",
          "self._chain.shift(slot, first, count)", "pass", SHIFT),
    Fault("session: a slot is saved before its cache has settled", PACKAGE + "engine/saving.py",
          "if slot in self._sequences.unsettled:", "if slot is None:", SAVING),
    Fault("session: another key's slot is saved", PACKAGE + "engine/saving.py",
          "if owner and not slot.namespace.startswith(owner):", "if owner and not slot.namespace:", SAVING),
    Fault("session: a restored slot's text is not taught", PACKAGE + "engine/saving.py",
          "source.begin(slot.id, saved.history)", "source.begin(slot.id, NO_TOKENS)", SAVING),
    Fault("session: damaged slots are restored", PACKAGE + "formats/slot_file.py",
          "open_container(path, KIND, verify=True)", "open_container(path, KIND, verify=False)", SAVING),
    Fault("session: forced tokens count as drafted", NATIVE + "engine/step.pyx",
          "slot.num_credited = accepted if slot.draft_source is not None else 0", "slot.num_credited = accepted", REASONING),
    Fault("session: a budget ends within a character", NATIVE + "engine/reasoning.pyx",
          "if b.left <= 0 and (b.missing == 0 or b.left <= -PATIENCE):", "if b.left <= 0:", REASONING),
    Fault("session: the open mark counts as reasoning", NATIVE + "engine/reasoning.pyx",
          "    if not turned:\n", "    if True:\n", REASONING),
    # -- Go's templates ------------------------------------------------------------------------
    Fault("printf pads on the wrong side", PACKAGE + "gotemplate/printf.py",
          'if "-" in flags:', 'if "+" in flags:', ("tests/gotemplate",)),
    Fault("printf takes too few values", PACKAGE + "gotemplate/printf.py",
          "if used < len(values):", "if used > len(values):", ("tests/gotemplate",)),
    # -- ollama --------------------------------------------------------------------------------
    Fault("a model's tag is lost behind a port", PACKAGE + "ollama/names.py",
          'if rest.rfind(":") > rest.rfind("/"):', 'if rest.find(":") > rest.rfind("/"):', ("tests/ollama",)),
    Fault("a name may climb out of its folder", PACKAGE + "ollama/names.py",
          '_NAMED = r"[A-Za-z0-9_][\\w.-]{0,79}"', '_NAMED = r"[A-Za-z0-9_.][\\w./-]{0,79}"', ("tests/ollama",)),
    Fault("a Modelfile's quotes end with the file", PACKAGE + "ollama/modelfile_lines.py",
          "            return None, until\n", "            until -= 1\n", ("tests/ollama",)),
    # -- commands ------------------------------------------------------------------------------
    Fault("sizes count in thousands", PACKAGE + "cli/options.py",
          'float(found[1]) * 1024 ** UNITS', 'float(found[1]) * 1000 ** UNITS', ("tests/cli/test_build_cache_usage.py", "tests/cli/test_cache.py", "tests/cli/test_build_cache.py")),
    Fault("5 is taken for 5 %", PACKAGE + "cli/options.py",
          "if made > MOST_HELD_OUT:", "if made > 100:", ("tests/cli/test_build_cache_usage.py", "tests/cli/test_build_cache.py")),
    Fault("names of drafters keep the given order", PACKAGE + "drafters/names.py",
          'if order == "priority" else names', 'if order == "given" else names', ("tests/native/drafter/test_errors.py", "tests/native/drafter/test_bounds.py", "tests/engine/test_engine_drafters.py", "tests/native/drafter/test_contract.py")),
)  # fmt: skip
