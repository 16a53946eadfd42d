package payments

import (
	"fmt"
	"testing"
)

// facts are those that select a step among all.
var facts = []string{"api", "client_id", "topic", "partition", "group", "transactional_id", "occurrence"}

// explore runs a scenario once. Then it runs the scenario in a subtest for each chosen step that the first run reached,
// with the broker killed at that step.
func explore(t *testing.T, isChosen func(step object) bool, scenario func(t *testing.T, broker *kbroker)) {
	first := startKbroker(t)
	scenario(t, first)
	for _, found := range first.ask("GET", "/steps", nil)["steps"].([]any) {
		step := found.(object)
		if !isChosen(step) {
			continue
		}
		t.Run(fmt.Sprintf("killed at step %v, %v %v", step["number"], step["point"], step["api"]), func(t *testing.T) {
			choice := object{}
			for _, name := range facts {
				if step[name] != nil {
					choice[name] = step[name]
				}
			}
			broker := startKbroker(t)
			broker.rule(step["point"].(string), "kill", choice)
			broker.keepRunning()
			scenario(t, broker)
		})
	}
}
